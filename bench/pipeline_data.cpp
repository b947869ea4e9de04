#include "pipeline_data.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "../cuda/harness/parallel.hpp"
#include "random.hpp"

namespace dsa::bench {

using harness::Binding;
using harness::DType;
using harness::Tensor;
using harness::TensorMap;

namespace {

constexpr int64_t kGrain = 1 << 16;
constexpr int64_t kLogitsAlignment = 64;  ///< a row of logits begins on a 256-byte boundary

Tensor random_bf16(std::vector<int64_t> shape, uint64_t seed) {
  Tensor tensor(DType::kBF16, std::move(shape));
  bf16* values = tensor.data<bf16>();
  harness::parallel_for(tensor.elements(), kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) values[i] = to_bf16(random_normal(seed, uint64_t(i)));
  });
  return tensor;
}

std::vector<int64_t> dense_shape(const Binding& binding) {
  std::vector<int64_t> shape = binding.shape;
  shape.back() = binding.columns;
  return shape;
}

/// The rows of a tensor on the machine, in bytes.
struct RowBytes {
  std::size_t data, stride, count;
};
RowBytes row_bytes(const Binding& binding) {
  const std::size_t size = harness::size_of(binding.dtype);
  const std::size_t stride = std::size_t(binding.shape.back()) * size;
  const std::size_t all = std::size_t(harness::element_count(binding.shape)) * size;
  return {std::size_t(binding.columns) * size, stride, stride ? all / stride : 0};
}

Tensor read_back(harness::Machine& machine, const Binding& binding, const harness::Buffer& buffer) {
  const RowBytes rows = row_bytes(binding);
  std::vector<std::byte> padded(rows.count * rows.stride);
  machine.copy_out(padded.data(), buffer.data(), padded.size());
  Tensor tensor(binding.dtype, dense_shape(binding));
  for (std::size_t r = 0; r < rows.count; ++r) {
    std::memcpy(tensor.bytes.data() + r * rows.data, padded.data() + r * rows.stride, rows.data);
  }
  return tensor;
}

template <class A>
void set_sparse_sizes(A& args, const PipelineSizes& sizes) {
  args.s_q = sizes.s_q;
  args.s_kv = sizes.s_kv;
  args.h_q = sizes.h_q;
  args.topk = sizes.topk;
  args.sm_scale = float(1 / std::sqrt(double(kDimQK)));
  // Not `causal`: the windows were, so the selected rows are, and every rung takes such problems.
}

}  // namespace

const std::string& PipelineStep::tensor_of(const std::string& binding) const {
  const auto found = names.find(binding);
  return found == names.end() ? binding : found->second;
}

std::vector<PipelineStep> pipeline_steps(const PipelineSizes& sizes) {
  QuantizeArgs quantize_q, quantize_k;
  quantize_q.rows = int64_t(sizes.s_q) * sizes.h_i;
  quantize_k.rows = sizes.s_kv;
  quantize_q.n = quantize_k.n = sizes.d_i;
  IndexerArgs indexer;
  indexer.s_q = sizes.s_q;
  indexer.s_kv = sizes.s_kv;
  indexer.h_i = sizes.h_i;
  indexer.d_i = sizes.d_i;
  indexer.logits_stride = (sizes.s_kv + kLogitsAlignment - 1) / kLogitsAlignment * kLogitsAlignment;
  TopkArgs topk;
  topk.rows = sizes.s_q;
  topk.n = sizes.s_kv;
  topk.topk = sizes.topk;
  topk.logits_stride = indexer.logits_stride;
  SparseMlaFwdArgs fwd;
  set_sparse_sizes(fwd, sizes);
  SparseMlaBwdArgs bwd;
  set_sparse_sizes(bwd, sizes);
  return {{Stage::kQuantize,
           "quantize q",
           quantize_q,
           {{"x", "index_q_bf16"}, {"bytes", "index_q"}, {"scale", "index_q_scale"}}},
          {Stage::kQuantize,
           "quantize k",
           quantize_k,
           {{"x", "index_k_bf16"}, {"bytes", "index_k"}, {"scale", "index_k_scale"}}},
          {Stage::kIndexer,
           "indexer",
           indexer,
           {{"q", "index_q"}, {"k", "index_k"}, {"k_scale", "index_k_scale"}, {"weights", "index_weights"}}},
          {Stage::kTopk, "topk", topk, {}},
          {Stage::kSparseMlaFwd, "sparse_mla_fwd", fwd, {}},
          {Stage::kSparseMlaBwd, "sparse_mla_bwd", bwd, {}}};
}

void PipelineData::add(const std::string& name, Tensor tensor) {
  if (machine_) {
    const auto [entry, added] = device_.try_emplace(name, *machine_, tensor.bytes.size(), name);
    machine_->copy_in(entry->second.data(), tensor.bytes.data(), tensor.bytes.size());
  }
  host_[name] = std::move(tensor);
}

void PipelineData::make_inputs(const PipelineSizes& sizes) {
  const int64_t s_q = sizes.s_q, s_kv = sizes.s_kv;
  add("index_q_bf16", random_bf16({s_q * sizes.h_i, sizes.d_i}, 1));
  add("index_k_bf16", random_bf16({s_kv, sizes.d_i}, 2));
  add("q", random_bf16({1, s_q, sizes.h_q, kDimQK}, 3));
  add("kv", random_bf16({1, s_kv, 1, kDimQK}, 4));
  add("d_out", random_bf16({1, s_q, sizes.h_q, kDimV}, 5));
  Tensor ks(DType::kI32, {s_q}), ke(DType::kI32, {s_q});
  for (int64_t i = 0; i < s_q; ++i) ke.data<int32_t>()[i] = int32_t(std::min(i + 1 + s_kv - s_q, s_kv));
  add("ks", std::move(ks));
  add("ke", std::move(ke));
}

void PipelineData::make_index_weights(const PipelineSizes& sizes) {
  const Tensor& q_scale = host_.at("index_q_scale");  // [s_q * h_i]
  const double softmax_scale = 1 / std::sqrt(double(sizes.h_i) * sizes.d_i);
  Tensor weights(DType::kF32, {sizes.s_q, sizes.h_i});
  for (int64_t i = 0; i < weights.elements(); ++i) {
    weights.data<float>()[i] = float(random_normal(6, uint64_t(i)) * q_scale.at(i) * softmax_scale);
  }
  add("index_weights", std::move(weights));
}

harness::Problem PipelineData::problem(const PipelineStep& step) const {
  harness::Problem problem;
  problem.args = step.args;
  Args args = step.args;
  for (const Binding& binding : harness::bindings(args)) {
    const auto found = host_.find(step.tensor_of(binding.name));
    if (binding.output || found == host_.end() || found->second.dtype != binding.dtype) continue;
    Tensor& input = problem.inputs[binding.name] = found->second;
    input.shape = dense_shape(binding);  // a quantised row of heads is a tensor of three axes to the indexer
  }
  return problem;
}

Args PipelineData::device_args(const PipelineStep& step) {
  Args args = step.args;
  for (const Binding& binding : harness::bindings(args)) {
    const std::string& name = step.tensor_of(binding.name);
    if (binding.output) {
      const RowBytes rows = row_bytes(binding);
      device_.try_emplace(name, *machine_, rows.count * rows.stride, name);
    } else {
      const auto host = host_.find(name);
      if (host == host_.end() || host->second.dtype != binding.dtype) continue;  // optional and absent
    }
    harness::set_pointer(binding, device_.at(name).data());
  }
  return args;
}

void PipelineData::poison_outputs(const PipelineStep& step) {
  Args args = step.args;
  for (const Binding& binding : harness::bindings(args)) {
    if (!binding.output) continue;
    const harness::Buffer& buffer = device_.at(step.tensor_of(binding.name));
    machine_->fill(buffer.data(), binding.dtype == DType::kI32 ? 0x7f : 0xff, buffer.bytes());
  }
}

TensorMap PipelineData::read_outputs(const PipelineStep& step) {
  TensorMap outputs;
  Args args = step.args;
  for (const Binding& binding : harness::bindings(args)) {
    if (!binding.output) continue;
    outputs.emplace(binding.name, read_back(*machine_, binding, device_.at(step.tensor_of(binding.name))));
  }
  return outputs;
}

std::string PipelineData::guard_report(const PipelineStep& step) {
  Args args = step.args;
  for (const Binding& binding : harness::bindings(args)) {
    if (!binding.output) continue;
    const std::string report = device_.at(step.tensor_of(binding.name)).guard_report();
    if (!report.empty()) return "'" + binding.name + "': " + report;
  }
  return "";
}

void PipelineData::keep(const PipelineStep& step, const TensorMap& outputs) {
  for (const auto& [binding, tensor] : outputs) host_[step.tensor_of(binding)] = tensor;
}

}  // namespace dsa::bench

#include "execute.hpp"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "../../reference/index_topk.hpp"
#include "../../reference/indexer.hpp"
#include "../../reference/quantize.hpp"
#include "../../reference/sparse_mla_bwd.hpp"
#include "../../reference/sparse_mla_fwd.hpp"
#include "../../reference/topk.hpp"

namespace dsa::harness {

namespace {

constexpr unsigned char kNanByte = 0xff;  ///< 0xff.. is NaN in every floating type here
constexpr unsigned char kIntegerByte =
    0x7f;  ///< 0x7f7f7f7f: no index, no count, and not the -1 that kernels write
constexpr int64_t kChunkBytes = 64 << 20;  ///< large tensors cross to and from the machine in such pieces

unsigned char poison_of(DType dtype) {
  return dtype == DType::kI32 ? kIntegerByte : kNanByte;
}

unsigned char guard_of(const Binding& binding) {
  if (binding.dtype != DType::kI32) return kNanByte;
  return binding.output ? kIntegerByte : 0;
}

std::size_t bytes_of(const Binding& binding) {
  return std::size_t(element_count(binding.shape)) * size_of(binding.dtype);
}

/// The shape without row padding.
std::vector<int64_t> dense_shape(const Binding& binding) {
  std::vector<int64_t> shape = binding.shape;
  if (!shape.empty()) shape.back() = binding.columns;
  return shape;
}

/// A tensor's rows as the machine stores them: `stride` bytes apart, of which the first `width` hold data.
struct Rows {
  int64_t count;
  int64_t width;
  int64_t stride;
  int64_t per_chunk() const { return std::max<int64_t>(1, kChunkBytes / std::max<int64_t>(1, stride)); }
};

Rows rows_of(const Binding& binding) {
  const int64_t size = int64_t(size_of(binding.dtype));
  const int64_t stride = binding.shape.back();
  const int64_t count = stride == 0 ? 0 : element_count(binding.shape) / stride;
  return {count, binding.columns * size, stride * size};
}

/// Calls visit(row, data, rows) for pieces of an input as it is to lie on the machine.
template <class Visit>
void for_each_chunk(const Binding& binding, const Tensor& tensor, const Visit& visit) {
  const Rows rows = rows_of(binding);
  std::vector<std::byte> padded;
  for (int64_t row = 0; row < rows.count; row += rows.per_chunk()) {
    const int64_t count = std::min(rows.per_chunk(), rows.count - row);
    const std::byte* dense = tensor.bytes.data() + row * rows.width;
    if (rows.width == rows.stride) {
      visit(row, dense, count);
      continue;
    }
    padded.resize(std::size_t(count * rows.stride));
    // Only logits have padding. A consumer that scans it meets NaN and values above all others.
    float* garbage = reinterpret_cast<float*>(padded.data());
    for (std::size_t i = 0; i < padded.size() / sizeof(float); ++i) {
      garbage[i] = i % 2 ? 1e30f : std::numeric_limits<float>::quiet_NaN();
    }
    for (int64_t i = 0; i < count; ++i) {
      std::copy_n(dense + i * rows.width, rows.width, padded.data() + i * rows.stride);
    }
    visit(row, padded.data(), count);
  }
}

/// Calls visit(row, data, rows) for pieces of a tensor as it lies on the machine.
template <class Visit>
void for_each_chunk_read(Machine& machine, const Binding& binding, const Buffer& buffer, const Visit& visit) {
  const Rows rows = rows_of(binding);
  std::vector<std::byte> chunk;
  for (int64_t row = 0; row < rows.count; row += rows.per_chunk()) {
    const int64_t count = std::min(rows.per_chunk(), rows.count - row);
    chunk.resize(std::size_t(count * rows.stride));
    machine.copy_out(chunk.data(), static_cast<char*>(buffer.data()) + row * rows.stride, chunk.size());
    visit(row, chunk.data(), count);
  }
}

/// Makes logits dense: the form in which a Problem holds them.
void drop_padding(Args& args) {
  if (auto* indexer = std::get_if<IndexerArgs>(&args)) indexer->logits_stride = indexer->s_kv;
  if (auto* topk = std::get_if<TopkArgs>(&args)) topk->logits_stride = topk->n;
}

}  // namespace

const char* status_name(Status status) {
  switch (status) {
    case Status::kPassed:
      return "PASSED";
    case Status::kIncorrect:
      return "INCORRECT";
    case Status::kUnsupported:
      return "UNSUPPORTED";
    case Status::kRuntimeError:
      return "RUNTIME_ERROR";
  }
  return "?";
}

// ---- Buffer ----------------------------------------------------------------------------------------------

Buffer::Buffer(Machine& machine, std::size_t bytes, const std::string& name, unsigned char guard)
    : machine_(&machine), bytes_(bytes), guard_(guard) {
  base_ = static_cast<char*>(machine.allocate(bytes + 2 * kGuardBytes));
  data_ = base_ + kGuardBytes;
  machine.fill(base_, guard, kGuardBytes);
  machine.fill(data_ + bytes, guard, kGuardBytes);
  machine.name(data_, bytes, name);
}

Buffer::~Buffer() {
  if (base_) machine_->release(base_);
}

Buffer::Buffer(Buffer&& other) noexcept
    : machine_(other.machine_),
      base_(std::exchange(other.base_, nullptr)),
      data_(other.data_),
      bytes_(other.bytes_),
      guard_(other.guard_) {}

std::string Buffer::guard_report() const {
  const auto changed = [&](const char* address) {
    std::vector<unsigned char> bytes(kGuardBytes);
    machine_->copy_out(bytes.data(), address, bytes.size());
    return int64_t(kGuardBytes) - std::count(bytes.begin(), bytes.end(), guard_);
  };
  if (const int64_t n = changed(base_)) return "wrote " + std::to_string(n) + " bytes before the start";
  if (const int64_t n = changed(data_ + bytes_)) return "wrote " + std::to_string(n) + " bytes past the end";
  return "";
}

// ---- Resident --------------------------------------------------------------------------------------------

struct Resident::Bound {
  Binding binding;
  const Tensor* original;  ///< null for outputs
  const Tensor* current;   ///< what was uploaded last
  Buffer buffer;
};

Resident::Resident(Machine& machine, const Problem& problem)
    : machine_(machine), problem_(problem), args_(problem.args) {
  for (const Binding& binding : bindings(args_)) {
    const Tensor* input = input_of(problem_, binding);
    if (!binding.output) {
      if (!input && binding.optional) continue;
      if (!input) throw std::logic_error("problem without input '" + binding.name + "'");
      if (input->shape != dense_shape(binding)) {
        throw std::logic_error("input '" + binding.name + "' has shape " + shape_text(input->shape) +
                               ", not " + shape_text(dense_shape(binding)));
      }
    }
    bound_.push_back({binding, input, input, Buffer(machine, bytes_of(binding), binding.name, guard_of(binding))});
    set_pointer(binding, bound_.back().buffer.data());
    if (input) upload(bound_.back());
  }
}

Resident::~Resident() = default;

void Resident::upload(const Bound& bound) {
  const int64_t stride = rows_of(bound.binding).stride;
  for_each_chunk(bound.binding, *bound.current, [&](int64_t row, const std::byte* data, int64_t rows) {
    machine_.copy_in(static_cast<char*>(bound.buffer.data()) + row * stride, data,
                     std::size_t(rows * stride));
  });
}

void Resident::replace_input(const std::string& name, const Tensor& tensor) {
  for (Bound& bound : bound_) {
    if (bound.binding.name != name || !bound.original) continue;
    if (tensor.shape != bound.original->shape || tensor.dtype != bound.original->dtype) {
      throw std::logic_error("replacement of input '" + name + "' has another shape or type");
    }
    bound.current = &tensor;
    upload(bound);
    return;
  }
  throw std::logic_error("no input '" + name + "' to replace");
}

void Resident::restore_inputs() {
  for (Bound& bound : bound_) {
    if (bound.current == bound.original) continue;
    bound.current = bound.original;
    upload(bound);
  }
}

void Resident::poison_outputs() {
  for (Bound& bound : bound_) {
    if (!bound.binding.output) continue;
    machine_.fill(bound.buffer.data(), poison_of(bound.binding.dtype), bound.buffer.bytes());
  }
}

TensorMap Resident::read_outputs() const {
  TensorMap outputs;
  for (const Bound& bound : bound_) {
    if (!bound.binding.output || bound.binding.scratch) continue;
    Tensor tensor(bound.binding.dtype, dense_shape(bound.binding));
    const Rows rows = rows_of(bound.binding);
    if (rows.width == rows.stride && !tensor.bytes.empty()) {
      machine_.copy_out(tensor.bytes.data(), bound.buffer.data(), tensor.bytes.size());
    } else {
      for_each_chunk_read(
          machine_, bound.binding, bound.buffer, [&](int64_t row, const std::byte* data, int64_t n) {
            for (int64_t i = 0; i < n; ++i) {
              std::copy_n(data + i * rows.stride, rows.width, tensor.bytes.data() + (row + i) * rows.width);
            }
          });
    }
    outputs.emplace(bound.binding.name, std::move(tensor));
  }
  return outputs;
}

std::string Resident::input_damage() const {
  for (const Bound& bound : bound_) {
    if (!bound.current) continue;
    const int64_t stride = rows_of(bound.binding).stride;
    std::vector<std::byte> actual;
    bool damaged = false;
    for_each_chunk(bound.binding, *bound.current, [&](int64_t row, const std::byte* expected, int64_t rows) {
      actual.resize(std::size_t(rows * stride));
      machine_.copy_out(actual.data(), static_cast<char*>(bound.buffer.data()) + row * stride, actual.size());
      damaged = damaged || std::memcmp(actual.data(), expected, actual.size()) != 0;
    });
    if (damaged) return "input '" + bound.binding.name + "' was changed by the kernel";
  }
  return "";
}

std::string Resident::guard_report() const {
  for (const Bound& bound : bound_) {
    const Binding& binding = bound.binding;
    const std::string report = bound.buffer.guard_report();
    if (!report.empty()) return "'" + binding.name + "': " + report;
    const Rows rows = rows_of(binding);
    if (!binding.output || rows.width == rows.stride) continue;
    std::string damage;
    const std::byte poison{poison_of(binding.dtype)};
    for_each_chunk_read(machine_, binding, bound.buffer, [&](int64_t row, const std::byte* data, int64_t n) {
      for (int64_t i = 0; i < n && damage.empty(); ++i) {
        const std::byte* begin = data + i * rows.stride;
        if (std::count(begin + rows.width, begin + rows.stride, poison) == rows.stride - rows.width) continue;
        damage = "'" + binding.name + "': wrote into the padding after column " +
                 std::to_string(binding.columns - 1) + " of row " + std::to_string(row + i);
      }
    });
    if (!damage.empty()) return damage;
  }
  return "";
}

// ---- Running ---------------------------------------------------------------------------------------------

RunResult launch_once(const RungEntry& rung, Machine& machine, Resident& resident) {
  resident.poison_outputs();
  machine.poison_shared_memory();
  try {
    const int error = rung.launch(resident.args(), machine.stream());
    const std::string failure = machine.synchronize();
    if (!failure.empty()) return {Status::kRuntimeError, failure, {}};
    if (error != 0) return {Status::kRuntimeError, "launch returned error " + std::to_string(error), {}};
  } catch (const std::exception& error) {
    return {Status::kRuntimeError, error.what(), {}};
  }
  for (const std::string& damage : {resident.guard_report(), resident.input_damage()}) {
    if (!damage.empty()) return {Status::kIncorrect, damage, {}};
  }
  return {Status::kPassed, "", resident.read_outputs()};
}

RunResult run_once(const RungEntry& rung, Machine& machine, const Problem& problem) {
  if (const char* reason = rung.unsupported(problem.args)) return {Status::kUnsupported, reason, {}};
  Resident resident(machine, problem);
  return launch_once(rung, machine, resident);
}

Args host_args(const Problem& problem) {
  Args args = problem.args;
  drop_padding(args);
  for (const Binding& binding : bindings(args)) {
    if (const Tensor* input = input_of(problem, binding)) set_pointer(binding, input->bytes.data());
  }
  return args;
}

namespace {

void compute(const QuantizeArgs& args) {
  reference::quantize(args);
}
void compute(const IndexerArgs& args) {
  reference::indexer(args);
}
void compute(const TopkArgs& args) {
  reference::topk(args);
}
void compute(const IndexTopkArgs& args) {
  reference::index_topk(args);
}
void compute(const SparseMlaFwdArgs& args) {
  reference::sparse_mla_fwd(args);
}
void compute(const SparseMlaBwdArgs& args) {
  reference::sparse_mla_bwd(args);
}

}  // namespace

TensorMap run_reference(const Problem& problem) {
  Args args = host_args(problem);
  TensorMap outputs;
  for (const Binding& binding : bindings(args)) {
    if (!binding.output || binding.scratch) continue;
    Tensor& tensor = outputs[binding.name] = Tensor(binding.dtype, binding.shape);
    std::fill(tensor.bytes.begin(), tensor.bytes.end(), std::byte{poison_of(binding.dtype)});
    set_pointer(binding, tensor.bytes.data());
  }
  std::visit([](const auto& a) { compute(a); }, args);
  return outputs;
}

}  // namespace dsa::harness

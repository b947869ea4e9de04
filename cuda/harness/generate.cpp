#include "generate.hpp"

#include <array>
#include <cmath>
#include <numeric>

#include "../../reference/selected.hpp"
#include "parallel.hpp"

namespace dsa::harness::generate {

namespace {

constexpr int64_t kGrain = 1 << 18;

/// e4m3 of every bf16: conversion by table, since the exact one is slow.
const std::array<e4m3, 65536>& e4m3_of_bf16() {
  static const auto table = [] {
    std::array<e4m3, 65536> t;
    for (int i = 0; i < 65536; ++i) t[std::size_t(i)] = to_e4m3(to_float(bf16{uint16_t(i)}));
    return t;
  }();
  return table;
}

/// Sum of the four 16-bit parts of a random number, with mean 0 and variance 1. Stays within 3.5.
float normal_of(uint64_t bits) {
  const int64_t sum = int64_t(bits & 0xffff) + int64_t(bits >> 16 & 0xffff) + int64_t(bits >> 32 & 0xffff) +
                      int64_t(bits >> 48);
  constexpr float kScale = 1.7320508f / 65536;  // each part has variance 65536^2 / 12
  return float(sum - 131070) * kScale;
}

template <class T, class Make>
void fill_parallel(Tensor& tensor, const Make& make) {
  T* data = tensor.data<T>();
  parallel_for(tensor.elements(), kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) data[i] = make(i);
  });
}

}  // namespace

uint64_t hash(uint64_t seed, uint64_t position) {
  // SplitMix64 (Steele, Lea and Flood, 2014) at a random access position.
  uint64_t x = (seed + 1) * 0xd1342543de82ef95 + position * 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

Tensor normal(DType dtype, std::vector<int64_t> shape, uint64_t seed, float scale) {
  Tensor tensor(dtype, std::move(shape));
  const auto value = [=](int64_t i) { return scale * normal_of(hash(seed, uint64_t(i))); };
  if (dtype == DType::kF32) fill_parallel<float>(tensor, value);
  if (dtype == DType::kBF16) fill_parallel<bf16>(tensor, [&](int64_t i) { return to_bf16(value(i)); });
  if (dtype == DType::kE4M3) {
    const auto& table = e4m3_of_bf16();
    fill_parallel<e4m3>(tensor, [&](int64_t i) { return table[to_bf16(value(i)).bits]; });
  }
  return tensor;
}

Tensor uniform(std::vector<int64_t> shape, uint64_t seed, float low, float high) {
  Tensor tensor(DType::kF32, std::move(shape));
  fill_parallel<float>(tensor, [=](int64_t i) {
    return low + (high - low) * float(hash(seed, uint64_t(i)) >> 40) * 0x1p-24f;
  });
  return tensor;
}

Tensor integers(std::vector<int64_t> shape, const std::vector<int32_t>& values) {
  return integers(std::move(shape), [&](int64_t i) { return values.at(std::size_t(i)); });
}

Tensor integers(std::vector<int64_t> shape, const std::function<int32_t(int64_t)>& value) {
  Tensor tensor(DType::kI32, std::move(shape));
  for (int64_t i = 0; i < tensor.elements(); ++i) tensor.data<int32_t>()[i] = value(i);
  return tensor;
}

Tensor floats(std::vector<int64_t> shape, const std::vector<float>& values) {
  Tensor tensor(DType::kF32, std::move(shape));
  for (int64_t i = 0; i < tensor.elements(); ++i) tensor.data<float>()[i] = values.at(std::size_t(i));
  return tensor;
}

void set(Tensor& tensor, int64_t flat_index, float value) {
  switch (tensor.dtype) {
    case DType::kF32:
      tensor.data<float>()[flat_index] = value;
      break;
    case DType::kI32:
      tensor.data<int32_t>()[flat_index] = int32_t(value);
      break;
    case DType::kBF16:
      tensor.data<bf16>()[flat_index] = to_bf16(value);
      break;
    case DType::kE4M3:
      tensor.data<e4m3>()[flat_index] = to_e4m3(value);
      break;
  }
}

void fill(Tensor& tensor, int64_t begin, int64_t end, float value) {
  for (int64_t i = begin; i < end; ++i) set(tensor, i, value);
}

void distinct(int32_t* to, int64_t count, int64_t n, uint64_t seed) {
  // j -> (a j + b) mod n is a permutation of [0, n) when a and n have no common divisor.
  int64_t a = 1, b = 0;
  if (n > 0) {
    a = int64_t(hash(seed, 0) % uint64_t(n)) | 1;
    while (std::gcd(a, n) != 1) a += 2;
    b = int64_t(hash(seed, 1) % uint64_t(n));
  }
  int64_t at = b;
  for (int64_t j = 0; j < count; ++j) {
    to[j] = j < n ? int32_t(at) : kInvalid;
    if (n > 0) at = (at + a) % n;
  }
}

// ---- Sparse MLA -------------------------------------------------------------------------------------------

namespace {

/// Rows that a query may see.
int64_t visible(const Sparse& s, int64_t query) {
  if (!s.causal) return s.s_kv;
  return std::min<int64_t>(s.s_kv, last_visible_row(query, s.q_start, s.kv_stride) + 1);
}

Tensor random_indices(const Sparse& s) {
  Tensor indices(DType::kI32, {s.b, s.s_q, s.g, s.topk});
  parallel_for(int64_t(s.b) * s.s_q * s.g, 64, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      distinct(indices.data<int32_t>() + i * s.topk, s.topk, visible(s, i / s.g % s.s_q),
               hash(s.seed, uint64_t(i)));
    }
  });
  return indices;
}

template <class A>
A sizes_of(const Sparse& s) {
  A a;
  a.b = s.b;
  a.s_q = s.s_q;
  a.s_kv = s.s_kv;
  a.h_q = s.h_q;
  a.g = s.g;
  a.topk = s.topk;
  a.sm_scale = float(1 / std::sqrt(double(kDimQK)));
  a.causal = s.causal;
  a.q_start = s.q_start;
  a.kv_stride = s.kv_stride;
  return a;
}

/// Sizes of a sparse problem of either direction.
struct Layout {
  int64_t s_q, g, topk;
};
Layout layout_of(const Problem& problem) {
  if (const auto* a = std::get_if<SparseMlaFwdArgs>(&problem.args)) return {a->s_q, a->g, a->topk};
  const auto& a = std::get<SparseMlaBwdArgs>(problem.args);
  return {a.s_q, a.g, a.topk};
}

}  // namespace

Problem sparse_fwd(const Sparse& s) {
  auto args = sizes_of<SparseMlaFwdArgs>(s);
  args.fp8 = s.fp8;
  const DType dtype = s.fp8 ? DType::kE4M3 : DType::kBF16;
  const float size = s.fp8 ? 1.0f : 0.1f;
  Problem problem{args, {}};
  problem.inputs["q"] = normal(dtype, {s.b, s.s_q, s.h_q, kDimQK}, hash(s.seed, 11), size);
  problem.inputs["kv"] = normal(dtype, {s.b, s.s_kv, s.g, kDimQK}, hash(s.seed, 12), size);
  problem.inputs["indices"] = random_indices(s);
  if (s.fp8) {
    // Not powers of two, and different for every row: a scale that is applied to the wrong row shows.
    problem.inputs["q_scale"] = uniform({s.b, s.s_q, s.h_q}, hash(s.seed, 13), 0.07f, 0.13f);
    problem.inputs["kv_scale"] = uniform({s.b, s.s_kv, s.g}, hash(s.seed, 14), 0.07f, 0.13f);
  }
  return problem;
}

Problem sparse_bwd(const Problem& forward, uint64_t seed) {
  const auto& f = std::get<SparseMlaFwdArgs>(forward.args);
  Sparse s{f.b, f.s_q, f.s_kv, f.h_q, f.g, f.topk, f.causal, f.q_start, f.kv_stride, false, 0};
  auto args = sizes_of<SparseMlaBwdArgs>(s);
  args.sm_scale = f.sm_scale;
  Problem problem{args, forward.inputs};
  TensorMap outputs = run_reference(forward);
  problem.inputs["out"] = std::move(outputs.at("out"));
  problem.inputs["lse"] = std::move(outputs.at("lse"));
  problem.inputs["d_out"] = normal(DType::kBF16, {f.b, f.s_q, f.h_q, kDimV}, seed, 1);
  return problem;
}

Problem sparse_bwd_large(const Sparse& s) {
  Problem problem{sizes_of<SparseMlaBwdArgs>(s), std::move(sparse_fwd(s).inputs)};
  // With q and kv of size 1/10, logits are about 0.01: the softmax is nearly flat, and out is a mean of topk
  // rows.
  problem.inputs["out"] =
      normal(DType::kBF16, {s.b, s.s_q, s.h_q, kDimV}, hash(s.seed, 15), 0.1f / std::sqrt(float(s.topk)));
  problem.inputs["d_out"] = normal(DType::kBF16, {s.b, s.s_q, s.h_q, kDimV}, hash(s.seed, 16), 1);
  Tensor& lse = problem.inputs["lse"] = Tensor(DType::kF32, {s.b, s.s_q, s.h_q});
  for (int64_t i = 0; i < lse.elements(); ++i) {
    const int64_t n = std::min<int64_t>(s.topk, visible(s, i / s.h_q % s.s_q));
    lse.data<float>()[i] = n > 0 ? float(std::log(double(n))) : INFINITY;
  }
  return problem;
}

int32_t* slots(Problem& problem, int64_t batch, int64_t query, int64_t group) {
  const Layout layout = layout_of(problem);
  return problem.inputs.at("indices").data<int32_t>() +
         ((batch * layout.s_q + query) * layout.g + group) * layout.topk;
}

int64_t valid_slots(const Problem& problem, int64_t batch, int64_t query, int64_t group) {
  SparseMlaFwdArgs args;
  const Args host = host_args(problem);
  if (const auto* forward = std::get_if<SparseMlaFwdArgs>(&host)) {
    args = *forward;
  } else {
    const auto& a = std::get<SparseMlaBwdArgs>(host);
    args.s_q = a.s_q;
    args.s_kv = a.s_kv;
    args.g = a.g;
    args.topk = a.topk;
    args.causal = a.causal;
    args.q_start = a.q_start;
    args.kv_stride = a.kv_stride;
    args.indices = a.indices;
    args.topk_length = a.topk_length;
  }
  return int64_t(reference::selected_rows(args, batch, query, group, 0, args.topk).size());
}

std::string name_of(const Sparse& s) {
  std::string name = "s_q:" + std::to_string(s.s_q) + "/s_kv:" + std::to_string(s.s_kv) +
                     "/h_q:" + std::to_string(s.h_q) + "/topk:" + std::to_string(s.topk);
  if (s.causal) name += "/causal";
  if (s.fp8) name += "/fp8";
  return name;
}

}  // namespace dsa::harness::generate

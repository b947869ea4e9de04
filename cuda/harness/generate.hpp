/// @file generate.hpp
/// Making inputs: fast (every element depends only on the seed and its position, so threads share the work),
/// deterministic, and the same on every machine.
#pragma once

#include <functional>

#include "cases.hpp"
#include "execute.hpp"

namespace dsa::harness::generate {

/// A well mixed 64-bit number for each (seed, position).
uint64_t hash(uint64_t seed, uint64_t position);

/// Roughly N(0, 1) (the sum of four uniform numbers), times `scale`; F32, BF16 or F8_E4M3.
Tensor normal(DType dtype, std::vector<int64_t> shape, uint64_t seed, float scale = 1);

/// Uniform in [low, high), F32.
Tensor uniform(std::vector<int64_t> shape, uint64_t seed, float low, float high);

/// I32 with the given values, or with a value computed for each position.
Tensor integers(std::vector<int64_t> shape, const std::vector<int32_t>& values);
Tensor integers(std::vector<int64_t> shape, const std::function<int32_t(int64_t)>& value);

/// F32 with the given values.
Tensor floats(std::vector<int64_t> shape, const std::vector<float>& values);

/// Stores a number in any tensor, rounded to its type.
void set(Tensor& tensor, int64_t flat_index, float value);
/// Stores one value in elements [begin, end).
void fill(Tensor& tensor, int64_t begin, int64_t end, float value);

/// `count` distinct numbers of [0, n) in scattered order, -1 after the n-th; written to `to`.
void distinct(int32_t* to, int64_t count, int64_t n, uint64_t seed);

// ---- Sparse MLA -------------------------------------------------------------------------------------------

/// Sizes of an attention problem with random data.
struct Sparse {
  int b = 1, s_q = 2, s_kv = 96, h_q = 8, g = 1, topk = 64;
  bool causal = false;
  int64_t q_start = 0, kv_stride = 1;
  bool fp8 = false;
  uint64_t seed = 1;
};

/// q and kv as FlashMLA's tests make them, N(0, 1) / 10; for FP8 N(0, 1) with scales 0.1. Indices are
/// distinct rows, for causal problems visible ones, -1 where there are not enough.
Problem sparse_fwd(const Sparse& sizes);

/// The backward of a forward problem: out and lse from the reference, random d_out.
Problem sparse_bwd(const Problem& forward, uint64_t seed = 7);

/// The same for sizes at which the reference takes too long: random `out`, and the lse of equal logits.
Problem sparse_bwd_large(const Sparse& sizes);

/// Pointer to the slots of one query and group.
int32_t* slots(Problem& problem, int64_t batch, int64_t query, int64_t group = 0);

/// Valid slots of one query and group.
int64_t valid_slots(const Problem& problem, int64_t batch, int64_t query, int64_t group = 0);

/// "s_q:4096/s_kv:8192/h_q:128/topk:2048", the names of docs/results.
std::string name_of(const Sparse& sizes);

}  // namespace dsa::harness::generate

namespace dsa::harness {

// The cases of each stage; `cases()` joins them.
std::vector<Case> quantize_cases();
std::vector<Case> indexer_cases();
std::vector<Case> topk_cases();
std::vector<Case> index_topk_cases();
std::vector<Case> fwd_cases();
std::vector<Case> bwd_cases();

}  // namespace dsa::harness

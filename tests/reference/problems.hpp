/// @file problems.hpp
/// Random problems that own their tensors. `args()` binds the pointers, so change sizes and tensors first.
#pragma once

#include <random>
#include <vector>

#include "reference/contracts.hpp"

namespace dsa::test {

class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}
  float normal(float stddev = 1.0f) { return stddev * normal_(engine_); }
  /// Uniform in [low, high].
  int integer(int low, int high) { return low + int(engine_() % uint64_t(int64_t(high) - low + 1)); }
  float uniform(float low, float high) { return low + (high - low) * float(engine_() % 65536) / 65536.0f; }
  std::vector<bf16> bf16s(int64_t count, float stddev = 1.0f);
  std::vector<e4m3> e4m3s(int64_t count);  ///< all finite bytes, evenly
  std::vector<float> floats(int64_t count, float stddev = 1.0f);

 private:
  std::mt19937_64 engine_;
  std::normal_distribution<float> normal_;
};

struct Sizes {
  int b = 1;
  int s_q = 3;
  int s_kv = 40;
  int h_q = 4;
  int g = 1;
  int topk = 16;
};

/// Sparse MLA forward with every optional tensor; clear a vector to leave that tensor out.
struct ForwardProblem {
  SparseMlaFwdArgs base;      ///< sizes and scalars; pointers are set by args()
  std::vector<bf16> q, kv;    ///< used when !base.fp8
  std::vector<e4m3> q8, kv8;  ///< used when base.fp8
  std::vector<float> q_scale, kv_scale;
  std::vector<int32_t> indices;
  std::vector<int32_t> topk_length;
  std::vector<float> attn_sink;
  std::vector<bf16> out;
  std::vector<float> lse, max_logits;

  /// bf16, indices uniform over [-2, s_kv + 1], no topk_length, no sink.
  ForwardProblem(const Sizes& sizes, uint64_t seed);
  void make_fp8(uint64_t seed);
  void set_indices(std::vector<int32_t> new_indices);  ///< also sets topk, from the count
  SparseMlaFwdArgs args();
};

/// Backward of a ForwardProblem (bf16 only).
struct BackwardProblem {
  ForwardProblem forward;
  std::vector<bf16> d_out, dq, dkv;
  std::vector<float> dkv_f32, delta;

  /// `forward.out` and `forward.lse` are what the caller has put there, see brute_force.hpp.
  BackwardProblem(ForwardProblem problem, uint64_t seed);
  SparseMlaBwdArgs args();
};

/// Values that are never a row of a KV tensor with s_kv rows.
std::vector<int32_t> invalid_rows(int s_kv);

}  // namespace dsa::test

#include "problems.hpp"

#include <climits>

namespace dsa::test {

std::vector<bf16> Random::bf16s(int64_t count, float stddev) {
  std::vector<bf16> values(count);
  for (bf16& x : values) x = to_bf16(normal(stddev));
  return values;
}

std::vector<e4m3> Random::e4m3s(int64_t count) {
  std::vector<e4m3> values(count);
  for (e4m3& x : values) x.bits = uint8_t(integer(0, 1) * 0x80 + integer(0, 0x7e));
  return values;
}

std::vector<float> Random::floats(int64_t count, float stddev) {
  std::vector<float> values(count);
  for (float& x : values) x = normal(stddev);
  return values;
}

ForwardProblem::ForwardProblem(const Sizes& sizes, uint64_t seed) {
  Random random(seed);
  base.b = sizes.b;
  base.s_q = sizes.s_q;
  base.s_kv = sizes.s_kv;
  base.h_q = sizes.h_q;
  base.g = sizes.g;
  base.topk = sizes.topk;
  base.sm_scale = 1.0f / 24.0f;
  q = random.bf16s(int64_t(base.b) * base.s_q * base.h_q * kDimQK);
  kv = random.bf16s(int64_t(base.b) * base.s_kv * base.g * kDimQK);
  indices.resize(int64_t(base.b) * base.s_q * base.g * base.topk);
  for (int32_t& row : indices) row = random.integer(-2, base.s_kv + 1);
}

void ForwardProblem::make_fp8(uint64_t seed) {
  Random random(seed);
  base.fp8 = true;
  q8 = random.e4m3s(q.size());
  kv8 = random.e4m3s(kv.size());
  q_scale.resize(int64_t(base.b) * base.s_q * base.h_q);
  kv_scale.resize(int64_t(base.b) * base.s_kv * base.g);
  for (float& x : q_scale) x = random.uniform(0.005f, 0.02f);
  for (float& x : kv_scale) x = random.uniform(0.005f, 0.02f);
}

void ForwardProblem::set_indices(std::vector<int32_t> new_indices) {
  indices = std::move(new_indices);
  base.topk = int(indices.size() / (int64_t(base.b) * base.s_q * base.g));
}

SparseMlaFwdArgs ForwardProblem::args() {
  const int64_t rows = int64_t(base.b) * base.s_q * base.h_q;
  out.resize(rows * kDimV);
  lse.resize(rows);
  max_logits.resize(rows);
  SparseMlaFwdArgs bound = base;
  bound.q = base.fp8 ? static_cast<const void*>(q8.data()) : q.data();
  bound.kv = base.fp8 ? static_cast<const void*>(kv8.data()) : kv.data();
  bound.indices = indices.data();
  bound.q_scale = q_scale.empty() ? nullptr : q_scale.data();
  bound.kv_scale = kv_scale.empty() ? nullptr : kv_scale.data();
  bound.topk_length = topk_length.empty() ? nullptr : topk_length.data();
  bound.attn_sink = attn_sink.empty() ? nullptr : attn_sink.data();
  bound.out = out.data();
  bound.lse = lse.data();
  bound.max_logits = max_logits.data();
  return bound;
}

BackwardProblem::BackwardProblem(ForwardProblem problem, uint64_t seed) : forward(std::move(problem)) {
  Random random(seed);
  forward.args();  // sizes out and lse
  d_out = random.bf16s(forward.out.size());
}

SparseMlaBwdArgs BackwardProblem::args() {
  const SparseMlaFwdArgs from = forward.args();
  dq.resize(forward.q.size());
  dkv.resize(forward.kv.size());
  dkv_f32.resize(forward.kv.size());
  delta.resize(forward.lse.size());
  SparseMlaBwdArgs bound;
  bound.b = from.b;
  bound.s_q = from.s_q;
  bound.s_kv = from.s_kv;
  bound.h_q = from.h_q;
  bound.g = from.g;
  bound.topk = from.topk;
  bound.sm_scale = from.sm_scale;
  bound.causal = from.causal;
  bound.q_start = from.q_start;
  bound.kv_stride = from.kv_stride;
  bound.q = forward.q.data();
  bound.kv = forward.kv.data();
  bound.indices = from.indices;
  bound.topk_length = from.topk_length;
  bound.attn_sink = from.attn_sink;
  bound.out = from.out;
  bound.lse = from.lse;
  bound.d_out = d_out.data();
  bound.dq = dq.data();
  bound.dkv = dkv.data();
  bound.dkv_f32 = dkv_f32.data();
  bound.delta = delta.data();
  return bound;
}

std::vector<int32_t> invalid_rows(int s_kv) {
  return {-1, -2, -123456, INT_MIN, INT_MIN + 1, s_kv, s_kv + 1, 1 << 20, INT_MAX - 1, INT_MAX};
}

}  // namespace dsa::test

/// @file online_softmax.cuh
/// Softmax of a tile of scores that is spread over accumulator fragments, tile after tile.
///
/// A thread has two rows (h = 0, 1) of its warpgroup's tile and, of each, every fourth pair of columns. Scores stay raw; with
/// c = sm_scale * log2(e), p = exp(sm_scale (s - m)) = exp2(c s - c m) is one FFMA and one exp2. This needs c > 0.
#pragma once

#include "mla_tile.cuh"

namespace dsa {

constexpr float kLog2E = 1.4426950408889634f;

/// -inf in place of the scores whose key is invalid. @param valid bit k: column k of this fragment
template <int kCount> DSA_DEVICE void mask_scores(float (&scores)[kCount], uint64_t valid, int t) {
  valid >>= accumulator_column(t);
#pragma unroll
  for (int j = 0; j < kCount / 4; ++j)
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const bool keep = valid >> (8 * j + i) & 1;
      scores[4 * j + i] = keep ? scores[4 * j + i] : -INFINITY;
      scores[4 * j + 2 + i] = keep ? scores[4 * j + 2 + i] : -INFINITY;
    }
}

/// Largest of this thread's scores in row h of the tile. Pairwise, not one after the other: a warp that has its scheduler for
/// itself waits for every result that the next instruction needs.
template <int kCount> DSA_DEVICE float thread_max(const float (&scores)[kCount], int h) {
  float m[kCount / 4];
#pragma unroll
  for (int j = 0; j < kCount / 4; ++j) m[j] = fmaxf(scores[4 * j + 2 * h], scores[4 * j + 2 * h + 1]);
#pragma unroll
  for (int n = kCount / 8; n > 0; n /= 2)
#pragma unroll
    for (int j = 0; j < n; ++j) m[j] = fmaxf(m[j], m[j + n]);
  return m[0];
}
/// Largest score of row h of the tile; all four threads of a row get it.
template <int kCount> DSA_DEVICE float tile_max(const float (&scores)[kCount], int h) { return row_max(thread_max(scores, h)); }

/// Scores of row h become probabilities relative to the maximum m; returns their sum over this thread's columns.
/// While every key so far is invalid, m is -inf; then so is every score, and 0 in place of m makes p = exp2(-inf) = 0.
template <int kCount> DSA_DEVICE float exponentiate(float (&scores)[kCount], int h, float m, float c) {
  const float offset = m == -INFINITY ? 0.0f : m * c;
  float sum = 0;
#pragma unroll
  for (int j = 0; j < kCount / 4; ++j)
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float& s = scores[4 * j + 2 * h + i];
      s = ptx::exp2_approx(fmaf(s, c, -offset));
      sum += s;
    }
  return sum;
}

/// What sums relative to maximum `before` must be multiplied with to be relative to `after` >= before.
DSA_DEVICE float rescale_factor(float before, float after, float c) {
  return after == -INFINITY ? 1.0f : ptx::exp2_approx((before - after) * c);
}

template <int kCount> DSA_DEVICE void rescale(float (&out)[kCount], const float (&factor)[2]) {
#pragma unroll
  for (int j = 0; j < kCount / 4; ++j)
#pragma unroll
    for (int i = 0; i < 4; ++i) out[4 * j + i] *= factor[i / 2];
}

/// Columns 16 `step` to 16 `step` + 15 of a fragment, rounded to bf16, as A-operand registers: r holds columns 8 (r / 2) of
/// the step, rows 8 (r % 2).
// [pack_fragment]
template <int kCount> DSA_DEVICE void pack_fragment(const float (&x)[kCount], int step, uint32_t (&registers)[4]) {
#pragma unroll
  for (int r = 0; r < 4; ++r) {
    const int i = 8 * step + r / 2 * 4 + r % 2 * 2;
    registers[r] = pack_bf16x2(x[i], x[i + 1]);
  }
}
// [pack_fragment]

/// What turns sums into results, for a row with largest score m (raw) and sum l: the factor of out, and lse.
struct RowEnd { float factor, lse; };
DSA_DEVICE RowEnd end_row(float m, float l, float sm_scale, const float* sink) {
  if (l == 0) return {0.0f, INFINITY};           // no valid key
  const float lse = m * sm_scale + logf(l);
  // The sink joins the denominator alone: out *= 1 / (1 + exp(sink - lse)).
  return {1.0f / (sink ? l * (1.0f + expf(*sink - lse)) : l), lse};
}

}  // namespace dsa

/// @file indexer_heads.cuh
/// The sum over heads when keys are the rows of the product: ReLU, weight and addition in a thread's own registers, then over
/// the four threads that share a row. Three forms: plain, scattered, and with the columns dealt out.
///
///     accumulators of a thread, q = t % 4, for a block of 2 queries x 64 heads:
///
///                    query 0: columns 0 .. 63                       query 1: columns 64 .. 127
///     key g          2q 2q+1 | 8+2q 8+2q+1 | ... | 56+2q 56+2q+1     64+2q ...
///     key g + 8      2q 2q+1 | 8+2q 8+2q+1 | ... | 56+2q 56+2q+1     64+2q ...
///
/// 16 of a query's 64 heads for each of two keys. The columns are the same for every tile of keys, so the 32 weights stay in
/// registers for the whole block.
#pragma once

#include "accumulator.cuh"
#include "indexer_tile.cuh"

namespace dsa {

/// w[2 j + i] is the weight of column 8 j + 2 (t % 4) + i. @param columns how many the block has; the others' weights are 0
// [weights]
DSA_DEVICE void load_weights(float (&w)[32], const float* weights, int64_t columns, int t) {
#pragma unroll
  for (int r = 0; r < 32; ++r) {
    const int column = r / 2 * 8 + accumulator_column(t) + r % 2;
    w[r] = column < columns ? weights[column] : 0;
  }
}
// [weights]

/// Over the columns that this thread has of a query: sum[h] for its two keys.
// [sum_columns]
template <class Shape>
DSA_DEVICE void sum_columns(const float (&d)[64], const float (&w)[32], int query, float (&sum)[2]) {
  constexpr int kGroups = Shape::kHeads / 8;       // of 8 columns, 2 of them in this thread
  sum[0] = sum[1] = 0;
#pragma unroll
  for (int r = 0; r < 2 * kGroups; ++r) {
    const int j = query * kGroups + r / 2, i = r % 2;
#pragma unroll
    for (int h = 0; h < 2; ++h) sum[h] += w[2 * j + i] * fmaxf(d[4 * j + 2 * h + i], 0.0f);
  }
}
// [sum_columns]

// ---- Without what the plain sum does twice ------------------------------------------------------------------------------
/// As sum_columns, in four chains of additions that do not wait for each other. The ReLU stays in d: in registers of its own it
/// would have few, and each addition would wait for the maximum before it (measured: 650 clocks a tile and warp).
template <class Shape>
DSA_DEVICE void sum_columns_in_four(float (&d)[64], const float (&w)[32], int query, float (&sum)[2]) {
  constexpr int kGroups = Shape::kHeads / 8;
  float part[2][2] = {};                           // by row and by parity of the column
#pragma unroll
  for (int j = query * kGroups; j < (query + 1) * kGroups; ++j)
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        float& x = d[4 * j + 2 * h + i];
        x = fmaxf(x, 0.0f);
        part[h][i] += w[2 * j + i] * x;
      }
  for (int h = 0; h < 2; ++h) sum[h] = part[h][0] + part[h][1];
}

/// Which logits sum_heads() leaves in a thread: queries scattered_query(t, 0), + 1, ... of the block, key scattered_key(t) of
/// the granule.
template <class Shape> DSA_DEVICE int scattered_query(int t, int i) { return t % 4 / 2 * (Shape::kQueries / 2) + i; }
DSA_DEVICE int scattered_key(int t) { return accumulator_row(t, t % 2); }

/// The sum over heads of a granule, scattered: of the four values that a quad holds in pieces (2 queries x 2 keys), each of its
/// threads gets one.
///
///                        a: query i            b: query i + kQueries / 2       each thread has pieces of a[0], a[1], b[0], b[1]
///     exchange with ^ 2  threads 0, 1: a[0], a[1]    threads 2, 3: b[0], b[1]  2 shuffles: of what is kept, the other's piece
///     exchange with ^ 1  0: a[0]   1: a[1]           2: b[0]   3: b[1]         1 shuffle
///
/// Two operands have no order, so all threads add the four pieces of a value as (0 + 2) + (1 + 3): a logit does not depend on
/// the place of its query and key in the block.
// [sum_heads]
template <class Shape>
DSA_DEVICE void sum_heads(float (&d)[64], const float (&w)[32], int t, float (&sum)[Shape::kQueries / 2]) {
  const bool upper = t & 2, odd = t & 1;
#pragma unroll
  for (int i = 0; i < Shape::kQueries / 2; ++i) {
    float a[2], b[2], kept[2];
    sum_columns_in_four<Shape>(d, w, i, a);
    sum_columns_in_four<Shape>(d, w, i + Shape::kQueries / 2, b);
    for (int h = 0; h < 2; ++h)
      kept[h] = (upper ? b[h] : a[h]) + __shfl_xor_sync(0xffffffffu, upper ? a[h] : b[h], 2);
    sum[i] = (odd ? kept[1] : kept[0]) + __shfl_xor_sync(0xffffffffu, odd ? kept[0] : kept[1], 1);
  }
}
// [sum_heads]

// ---- One query per thread -------------------------------------------------------------------------------------------------
/// For blocks whose columns were dealt out by copy_queries_dealt(): of every 8 columns, kDealt belong to each query, so that a
/// thread, which has columns 2 q and 2 q + 1 of them, has them of one query only.
///
///     8 columns j:  2 queries of 64 heads                        4 queries of 32 heads
///                   columns 0-3  query 0, heads 4j .. 4j+3       columns 0-1  query 0, heads 2j, 2j+1
///                   columns 4-7  query 1, heads 4j .. 4j+3       columns 2-3  query 1, ...
template <class Shape> constexpr int kDealt = 8 / Shape::kQueries;
/// A thread has the logits of query dealt_query(t) and keys dealt_key(t, 0) to dealt_key(t, kDealtKeys - 1) of the granule.
template <class Shape> constexpr int kDealtKeys = Shape::kQueries / 2;
template <class Shape> DSA_DEVICE int dealt_query(int t) { return accumulator_column(t) / kDealt<Shape>; }
template <class Shape> DSA_DEVICE int dealt_key(int t, int i) {
  return accumulator_row(t, kDealtKeys<Shape> == 1 ? t % 2 : i);
}

/// w[2 j + i] is the weight of column 8 j + 2 (t % 4) + i. @param weights  of the block, query by query
// [dealt_weights]
template <class Shape> DSA_DEVICE void load_dealt_weights(float (&w)[32], const float* weights, int t) {
  const float* from = weights + dealt_query<Shape>(t) * Shape::kHeads + accumulator_column(t) % kDealt<Shape>;
#pragma unroll
  for (int r = 0; r < 32; ++r) w[r] = from[r / 2 * kDealt<Shape> + r % 2];
}
// [dealt_weights]

/// max(x, 0) * 2^-25 for a product x of a query's head with a key, max(NaN, 0) = 0. One instruction, a multiplication that
/// saturates to [0, 1] (PTX: mul.sat.f32), on the pipe of the FFMAs; a maximum runs on another, at half its rate.
///
/// Exact. |x| <= 448 * 448 * 128 < 2^25, so nothing reaches 1. Products of two e4m3 values are multiples of 2^-18, and so is x,
/// however the tensor core cuts it: not 0, it is 2^-43 at least when scaled, far above the subnormals below 2^-126.
// [relu_scaled]
constexpr float kReluScale = 0x1p-25f;
DSA_DEVICE float relu_scaled(float x) {
#if defined(DSA_EMULATOR)
  x *= kReluScale;
  return x > 0 ? fminf(x, 1.0f) : 0.0f;              // NaN is not above 0
#else
  return __saturatef(x * kReluScale);
#endif
}
// [relu_scaled]

/// The sum over heads of a granule. Of 64 heads a thread has 32, of two keys, and the rest is with the thread beside it: they
/// swap halves, and each keeps a key. Of 32 heads it has all. Leaves the scaled ReLU in d.
///
/// Weights may be any floats, infinities and NaN too, and go through the scaled sum as through a plain one. It is less exact only
/// where sums are so small that, scaled, they are subnormal, and then by less than 2^-118.
// [dealt_sum]
template <class Shape>
DSA_DEVICE void sum_dealt(float (&d)[64], const float (&w)[32], int t, float (&sum)[kDealtKeys<Shape>]) {
  float part[2][2] = {};                           // by row and by parity of the column
#pragma unroll
  for (int r = 0; r < 32; ++r)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float& x = d[r / 2 * 4 + 2 * h + r % 2];
      x = relu_scaled(x);
      part[h][r % 2] += w[r] * x;
    }
  const float first = part[0][0] + part[0][1], second = part[1][0] + part[1][1];
  if constexpr (kDealtKeys<Shape> == 2) {
    sum[0] = first;
    sum[1] = second;
  } else {
    const bool odd = t & 1;
    sum[0] = (odd ? second : first) + __shfl_xor_sync(0xffffffffu, odd ? first : second, 1);
  }
  for (float& x : sum) x *= 1 / kReluScale;
}
// [dealt_sum]

}  // namespace dsa

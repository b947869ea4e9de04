/// @file indexer_heads.cuh
/// The sum over heads when keys are the rows of the product: ReLU, weight and addition in a thread's own registers, then over
/// the four threads that share a row.
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
/// As sum_columns, in four chains of additions that do not wait for each other.
template <class Shape>
DSA_DEVICE void sum_columns_in_four(const float (&d)[64], const float (&w)[32], int query, float (&sum)[2]) {
  constexpr int kGroups = Shape::kHeads / 8;
  float part[2][2] = {};                           // by row and by parity of the column
#pragma unroll
  for (int j = query * kGroups; j < (query + 1) * kGroups; ++j)
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
      for (int h = 0; h < 2; ++h) part[h][i] += w[2 * j + i] * fmaxf(d[4 * j + 2 * h + i], 0.0f);
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
DSA_DEVICE void sum_heads(const float (&d)[64], const float (&w)[32], int t, float (&sum)[Shape::kQueries / 2]) {
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

}  // namespace dsa

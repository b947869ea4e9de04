/// @file late_softmax.cuh
/// Online softmax relative to a reference that is seldom raised, for two consumers that make scores by turns.
#pragma once

#include "online_softmax.cuh"

namespace dsa {

constexpr float kSlack = 8;                           ///< how far a score may exceed the reference, in powers of two

/// How a tile changed the reference; a warp of one consumer tells the warp of the other that has the same 16 rows.
struct Raise {
  bool any[4];                                        ///< by warp: the rest counts
  float reference[kTileHeads];                        ///< the new one
  float factor[kTileHeads];                           ///< what sums relative to the old one must be multiplied with

  /// The same answer for a whole warpgroup, where its warps must not go different ways.
  DSA_DEVICE bool of_some_warp() const { return any[0] | any[1] | any[2] | any[3]; }
};

DSA_DEVICE float both(float2 x) { return x.x + x.y; }

/// Online softmax relative to a late reference: this thread's part of two rows.
struct LateSoftmax {
  float c;                                            ///< sm_scale * log2(e)
  float slack;                                        ///< kSlack in units of a raw score
  float reference[2] = {-INFINITY, -INFINITY};
  float m[2] = {-INFINITY, -INFINITY};                ///< largest score of this thread in this consumer's tiles
  float l[2] = {};                                    ///< sum of p of this consumer's tiles, relative to the reference: for lse
  float weight[2] = {};                               ///< the same of p as the products have it, rounded to bf16: for the output

  DSA_DEVICE explicit LateSoftmax(float sm_scale)
      : c(sm_scale * kLog2E), slack(kSlack / c) {}

  // [raise]
  /// The largest of this thread's scores. What the other three of a row have matters only if a reference is raised: so there are
  /// no shuffles here.
  DSA_DEVICE void find_largest(const float (&scores)[32], float (&largest)[2]) {
    for (int h = 0; h < 2; ++h) {
      largest[h] = thread_max(scores, h);
      m[h] = fmaxf(m[h], largest[h]);
    }
  }
  /// Whether a row of this warp exceeds the reference by more than the slack.
  DSA_DEVICE bool exceeds(const float (&largest)[2]) const {
    return __any_sync(0xffffffffu, largest[0] > reference[0] + slack || largest[1] > reference[1] + slack);
  }
  /// Raises the reference of the rows that exceed it to their maximum; the others keep theirs, with a factor of 1.
  DSA_DEVICE void raise(const float (&largest)[2], float (&factor)[2]) {
    for (int h = 0; h < 2; ++h) {
      const float row = row_max(largest[h]), higher = row > reference[h] + slack ? row : reference[h];
      factor[h] = rescale_factor(reference[h], higher, c);
      scale_sums(h, factor[h]);
      reference[h] = higher;
    }
  }
  // [raise]
  /// Follows a raise by the other consumer.
  DSA_DEVICE void follow(const Raise& raise, int t, float (&factor)[2]) {
    get_rows(raise.factor, t, factor);
    get_rows(raise.reference, t, reference);
    for (int h = 0; h < 2; ++h) scale_sums(h, factor[h]);
  }
  DSA_DEVICE void scale_sums(int h, float factor) { l[h] *= factor, weight[h] *= factor; }
  DSA_DEVICE void exponentiate_rows(float (&scores)[32]) const {
    for (int h = 0; h < 2; ++h) exponentiate(scores, h, reference[h], c);
  }
  // [add]
  /// Adds a tile to the sums: p, and p as the products have it. A largest p of 1 is exact in bf16, one of 2^x is not: a row with
  /// one heavy key would be off by its rounding, if it were not divided by what is really multiplied. Nobody waits for these
  /// sums, so they are made while the tensor cores multiply.
  DSA_DEVICE void add(const float (&p)[32]) {
#pragma unroll
    for (int h = 0; h < 2; ++h)
#pragma unroll
      for (int j = 2 * h; j < 32; j += 8) {
        l[h] += (p[j] + p[j + 1]) + (p[j + 4] + p[j + 5]);
        weight[h] += both(unpack_bf16x2(pack_bf16x2(p[j], p[j + 1]))) + both(unpack_bf16x2(pack_bf16x2(p[j + 4], p[j + 5])));
      }
  }
  // [add]
  // [tell]
  DSA_DEVICE void tell(Raise& raise, int t, bool raised, const float (&factor)[2]) const {
    if (t % 32 == 0) raise.any[t / 32] = raised;
    if (!raised) return;
    put_rows(raise.factor, t, factor);
    put_rows(raise.reference, t, reference);
  }
  // [tell]
};

/// P as A-operand registers, and in shared memory for the other consumer.
DSA_DEVICE void store_p(ColumnTile& tile, int t, const float (&scores)[32], uint32_t (&p)[4][4]) {
  for (int step = 0; step < 4; ++step) {
    pack_fragment(scores, step, p[step]);
    store_fragment(tile, t, step, p[step]);
  }
  ptx::fence_proxy_async_shared();
}

}  // namespace dsa

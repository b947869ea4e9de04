/// @file topk_coarse_key.cuh
/// Logits as 16-bit keys: coarse, but never out of order, which is what the first cut of a top-k needs.
///
/// fp16 has the right resolution, 5 bits of exponent and 10 of mantissa, but rounds, overflows and has subnormals. This is
/// the same idea in integers: 32 binades from 2^-16 to nearly 2^16, cut off below the tenth mantissa bit, and everything beyond
/// either end in the outermost class. A class is then an interval of floats whose bounds are known exactly.
#pragma once

#include "../device/device.cuh"

namespace dsa {

/// Key of what is never selected, NaN and -inf. All other keys lie between kLowestCoarse and kHighestCoarse: their highest
/// digit of 8 or more bits is never 0, so that a histogram of it needs no branch, just no look at bin 0.
inline constexpr uint32_t kCoarseNeverSelected = 0;
inline constexpr uint32_t kLowestCoarse = 0x100, kHighestCoarse = 0xffff - kLowestCoarse;
inline constexpr int kCoarseBits = 16;

inline constexpr int kDroppedBits = 13;                    ///< of fp32's 23 mantissa bits
inline constexpr uint32_t kSmallestBits = (127u - 16) << 23;   ///< 2^-16 as fp32
inline constexpr uint32_t kLargestBits = kSmallestBits + ((0x8000 - kLowestCoarse) << kDroppedBits) - 1;   ///< just below 57344

/// a < b implies coarse_key(a) <= coarse_key(b); -0 and +0 share a key.
// [coarse_key]
DSA_DEVICE uint32_t coarse_key(float x) {
  const float magnitude = fminf(fmaxf(fabsf(x), __uint_as_float(kSmallestBits)), __uint_as_float(kLargestBits));
  const uint32_t key = 0x8000 + (__float_as_uint(magnitude) >> kDroppedBits) - (kSmallestBits >> kDroppedBits);
  if (!(x > -INFINITY)) return kCoarseNeverSelected;       // NaN fails every comparison
  return x < 0 ? key ^ 0xffff : key;                       // negative floats order backwards; -0 < 0 is false
}
// [coarse_key]

/// The smallest float whose coarse key is at least `key`: x >= coarse_bound(key) is coarse_key(x) >= key, in one comparison.
/// Above the highest key there is none; NaN says so, since nothing compares with it.
// [coarse_bound]
DSA_DEVICE float coarse_bound(uint32_t key) {
  if (key > kHighestCoarse) return __uint_as_float(0x7fffffffu);
  if (key <= kLowestCoarse) return -3.402823466e+38f;
  if (key == 0x8000) return 0;
  if (key > 0x8000) return __uint_as_float(kSmallestBits + ((key - 0x8000) << kDroppedBits));
  // Class 0x7fff - key of the magnitudes, at its far end.
  return -__uint_as_float(kSmallestBits + ((0x8000 - key) << kDroppedBits) - 1);
}
// [coarse_bound]

}  // namespace dsa

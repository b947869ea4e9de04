/// @file topk_half_key.cuh
/// Logits as fp16, two in a register: coarse, but never out of order, and the hardware converts and compares them in pairs.
///
/// Rounding to fp16 keeps the order: a < b gives half(a) <= half(b). Logits that share a half are a class, told apart by their
/// fp32 values where that matters. Beyond +-65520 everything is one class of its side, the infinities. NaN stays NaN, which no
/// comparison lets through; -0 becomes +0, so that a class has one pattern.
///
/// topk_coarse_key.cuh is the same idea in integers: no class is larger than it need be there, but a key costs eight
/// instructions and a comparison one per key, where these cost one and a half for each.
#pragma once

#include "../device/device.cuh"

namespace dsa {

inline constexpr uint32_t kHalfNan = 0x7fff;               ///< the pattern that conversion gives every NaN
inline constexpr uint32_t kHalfInfinity = 0x7c00;
inline constexpr uint32_t kHalfMinusInfinity = 0xfc00;     ///< -inf itself, which is never selected, and all below -65520
inline constexpr uint32_t kHalfLowest = 0xfbff;            ///< -65504

/// `lo` in the lower half.
// [half_keys]
DSA_DEVICE uint32_t half_keys(float lo, float hi) { return positive_zeros_f16x2(pack_f16x2(lo, hi)); }

/// 0xffff in each half of `pair` that is at least that of `bound`.
DSA_DEVICE uint32_t halves_at_least(uint32_t pair, uint32_t bound) { return at_least_f16x2(pair, bound); }
// [half_keys]

DSA_DEVICE bool half_key_at_least(uint32_t key, uint32_t bound) { return halves_at_least(key, bound) & 0xffff; }

/// Two halves as two numbers that compare the same way.
// [ordered]
DSA_DEVICE uint32_t ordered_halves(uint32_t pair) {
  const uint32_t negative = (pair >> 15 & 0x10001u) * 0xffff;   // negative numbers order backwards: all their bits flip
  return pair ^ (negative | 0x80008000u);
}
/// The half of such a number.
DSA_DEVICE uint32_t half_of_ordered(uint32_t number) { return number & 0x8000 ? number ^ 0x8000 : ~number & 0xffff; }
// [ordered]

/// The next larger half that is not -0; above +inf a NaN, which nothing is at least.
DSA_DEVICE uint32_t half_above(uint32_t key) { return key & 0x8000 ? key - 1 : key + 1; }

/// The half `key` as a float, an infinity as 65520: all that rounds to it is at least that far from 0.
DSA_DEVICE float float_of_half(uint32_t key) {
  const float magnitude = fminf(__uint_as_float((key & 0x7fff) << 13) * 0x1p112f, 65520.0f);   // subnormals too
  return key & 0x8000 ? -magnitude : magnitude;
}

}  // namespace dsa

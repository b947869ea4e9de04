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

#if !defined(DSA_EMULATOR)
#include <cuda_fp16.h>
#endif

namespace dsa {

inline constexpr uint32_t kHalfNan = 0x7fff;               ///< the pattern that conversion gives every NaN
inline constexpr uint32_t kHalfInfinity = 0x7c00;
inline constexpr uint32_t kHalfMinusInfinity = 0xfc00;     ///< -inf itself, which is never selected, and all below -65520
inline constexpr uint32_t kHalfLowest = 0xfbff;            ///< -65504

#if defined(DSA_EMULATOR)
inline uint32_t half_from(float x) {
  const uint32_t sign = __float_as_uint(x) >> 16 & 0x8000, magnitude = __float_as_uint(x) & 0x7fffffff;
  if (magnitude > 0x7f800000) return kHalfNan;
  if (magnitude >= 0x477ff000) return sign | kHalfInfinity;          // 65520
  const uint32_t half = magnitude >= 0x38800000                      // 2^-14, the smallest that is not subnormal
                            ? (magnitude + 0xfff + (magnitude >> 13 & 1) - (112u << 23)) >> 13
                            : uint32_t(std::nearbyint(std::fabs(x) * 0x1p24f));
  return half ? sign | half : 0;
}
inline bool half_at_least(uint32_t a, uint32_t b) {
  const auto order = [](uint32_t half) { return half & 0x8000 ? -int(half & 0x7fff) : int(half); };
  const auto nan = [](uint32_t half) { return (half & 0x7fff) > kHalfInfinity; };
  return !nan(a) && !nan(b) && order(a) >= order(b);
}
#endif

/// `lo` in the lower half (PTX: cvt.rn.f16x2.f32, and add.f16x2 to make -0 +0).
// [half_keys]
DSA_DEVICE uint32_t half_keys(float lo, float hi) {
#if defined(DSA_EMULATOR)
  return half_from(lo) | half_from(hi) << 16;
#else
  uint32_t pair;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(hi), "f"(lo));
  asm("add.rn.f16x2 %0, %0, %1;" : "+r"(pair) : "r"(0));
  return pair;
#endif
}

/// 0xffff in each half of `pair` that is at least that of `bound` (PTX: set.ge.u32.f16x2).
DSA_DEVICE uint32_t halves_at_least(uint32_t pair, uint32_t bound) {
#if defined(DSA_EMULATOR)
  return (half_at_least(pair & 0xffff, bound & 0xffff) ? 0xffffu : 0) |
         (half_at_least(pair >> 16, bound >> 16) ? 0xffff0000u : 0);
#else
  uint32_t mask;
  asm("set.ge.u32.f16x2 %0, %1, %2;" : "=r"(mask) : "r"(pair), "r"(bound));
  return mask;
#endif
}
// [half_keys]

DSA_DEVICE bool half_key_at_least(uint32_t key, uint32_t bound) { return halves_at_least(key, bound) & 0xffff; }

/// The next larger half that is not -0; above +inf a NaN, which nothing is at least.
DSA_DEVICE uint32_t half_above(uint32_t key) { return key & 0x8000 ? key - 1 : key + 1; }

}  // namespace dsa

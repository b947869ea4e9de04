/// @file numeric.cuh
/// bf16 and e4m3 on the device: the storage types of reference/numeric.hpp, converted by the CUDA intrinsics on
/// the GPU and by the reference's functions on the emulator. Also pairs of fp16, which nothing is stored as.
#pragma once

#include "../../reference/numeric.hpp"

#if !defined(DSA_EMULATOR)
#include <cuda_bf16.h>
#include <cuda_fp8.h>
#endif

namespace dsa {

/// Exact.
DSA_DEVICE float float_from(bf16 x) {
#if defined(DSA_EMULATOR)
  return to_float(x);
#else
  return __uint_as_float(uint32_t(x.bits) << 16);
#endif
}

/// Exact; every e4m3 value is a half value, which is what the hardware converts to (PTX: cvt.rn.f16x2.e4m3x2).
DSA_DEVICE float float_from(e4m3 x) {
#if defined(DSA_EMULATOR)
  return to_float(x);
#else
  return __half2float(__half(__nv_cvt_fp8_to_halfraw(x.bits, __NV_E4M3)));
#endif
}

/// Rounds to nearest even (PTX: cvt.rn.bf16.f32).
DSA_DEVICE bf16 bf16_from(float x) {
#if defined(DSA_EMULATOR)
  return to_bf16(x);
#else
  return bf16{__bfloat16_as_ushort(__float2bfloat16_rn(x))};
#endif
}

/// Rounds to nearest even, saturates to +-448 (PTX: cvt.rn.satfinite.e4m3x2.f32).
DSA_DEVICE e4m3 e4m3_from(float x) {
#if defined(DSA_EMULATOR)
  return to_e4m3(x);
#else
  return e4m3{__nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E4M3)};
#endif
}

// ---- Packed: several values in one register, the first in the lowest bits ---------------------------------------
/// Rounds as bf16_from (PTX: cvt.rn.bf16x2.f32).
DSA_DEVICE uint32_t pack_bf16x2(float lo, float hi) {
#if defined(DSA_EMULATOR)
  return uint32_t(to_bf16(lo).bits) | uint32_t(to_bf16(hi).bits) << 16;
#else
  uint32_t pair;                                      // not the intrinsic: its two halves would be taken apart and put together again
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(hi), "f"(lo));
  return pair;
#endif
}

#if defined(DSA_EMULATOR)
inline uint32_t half_from(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x), sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return 0x7fff;
  if (magnitude >= 0x477ff000) return sign | 0x7c00;       // 65520
  if (magnitude < 0x38800000) return sign | uint32_t(std::nearbyint(std::fabs(x) * 0x1p24f));   // 2^-14: subnormal
  return sign | (magnitude + 0xfff + (magnitude >> 13 & 1) - (112u << 23)) >> 13;
}
inline bool half_at_least(uint32_t a, uint32_t b) {
  const auto order = [](uint32_t half) { return half & 0x8000 ? -int(half & 0x7fff) : int(half); };
  const auto nan = [](uint32_t half) { return (half & 0x7fff) > 0x7c00; };
  return !nan(a) && !nan(b) && order(a) >= order(b);
}
#endif

/// Two halves, rounded to nearest even; NaN becomes 0x7fff, and what is beyond +-65520 infinite (PTX: cvt.rn.f16x2.f32).
DSA_DEVICE uint32_t pack_f16x2(float lo, float hi) {
#if defined(DSA_EMULATOR)
  return half_from(lo) | half_from(hi) << 16;
#else
  uint32_t pair;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(hi), "f"(lo));
  return pair;
#endif
}

/// Two halves, -0 replaced by +0 (PTX: add.rn.f16x2, of 0).
DSA_DEVICE uint32_t positive_zeros_f16x2(uint32_t pair) {
#if defined(DSA_EMULATOR)
  if ((pair & 0xffff) == 0x8000) pair &= 0xffff0000u;
  return pair >> 16 == 0x8000 ? pair & 0xffff : pair;
#else
  asm("add.rn.f16x2 %0, %0, %1;" : "+r"(pair) : "r"(0));
  return pair;
#endif
}

/// 0xffff in each half of `a` that is at least that of `b`, neither being NaN; 0 in the others (PTX: set.ge.u32.f16x2).
DSA_DEVICE uint32_t at_least_f16x2(uint32_t a, uint32_t b) {
#if defined(DSA_EMULATOR)
  return (half_at_least(a & 0xffff, b & 0xffff) ? 0xffffu : 0) | (half_at_least(a >> 16, b >> 16) ? 0xffff0000u : 0);
#else
  uint32_t mask;
  asm("set.ge.u32.f16x2 %0, %1, %2;" : "=r"(mask) : "r"(a), "r"(b));
  return mask;
#endif
}

/// Rounds and saturates as e4m3_from (PTX: cvt.rn.satfinite.e4m3x2.f32).
DSA_DEVICE uint16_t pack_e4m3x2(float a, float b) {
#if defined(DSA_EMULATOR)
  return uint16_t(to_e4m3(a).bits | to_e4m3(b).bits << 8);
#else
  return __nv_cvt_float2_to_fp8x2(make_float2(a, b), __NV_SATFINITE, __NV_E4M3);
#endif
}
DSA_DEVICE uint32_t pack_e4m3x4(float a, float b, float c, float d) {
  return uint32_t(pack_e4m3x2(a, b)) | uint32_t(pack_e4m3x2(c, d)) << 16;
}

/// Exact.
DSA_DEVICE float2 unpack_bf16x2(uint32_t x) {
  return make_float2(__uint_as_float(x << 16), __uint_as_float(x & 0xffff0000u));
}
/// Exact (PTX: cvt.rn.f16x2.e4m3x2, every e4m3 value being a half value).
DSA_DEVICE float2 unpack_e4m3x2(uint16_t x) {
#if defined(DSA_EMULATOR)
  return make_float2(to_float(e4m3{uint8_t(x)}), to_float(e4m3{uint8_t(x >> 8)}));
#else
  return __half22float2(__half2(__nv_cvt_fp8x2_to_halfraw2(x, __NV_E4M3)));
#endif
}
DSA_DEVICE float4 unpack_e4m3x4(uint32_t x) {
  const float2 lo = unpack_e4m3x2(uint16_t(x)), hi = unpack_e4m3x2(uint16_t(x >> 16));
  return make_float4(lo.x, lo.y, hi.x, hi.y);
}

/// Four consecutive elements in one load; `x` must be aligned to the size of the four.
DSA_DEVICE float4 load4(const bf16* x) {
  const uint2 raw = *reinterpret_cast<const uint2*>(x);
  return make_float4(float_from(bf16{uint16_t(raw.x)}), float_from(bf16{uint16_t(raw.x >> 16)}),
                     float_from(bf16{uint16_t(raw.y)}), float_from(bf16{uint16_t(raw.y >> 16)}));
}
DSA_DEVICE float4 load4(const e4m3* x) {
  const uint32_t raw = *reinterpret_cast<const uint32_t*>(x);
  return make_float4(float_from(e4m3{uint8_t(raw)}), float_from(e4m3{uint8_t(raw >> 8)}),
                     float_from(e4m3{uint8_t(raw >> 16)}), float_from(e4m3{uint8_t(raw >> 24)}));
}

}  // namespace dsa

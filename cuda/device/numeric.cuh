/// @file numeric.cuh
/// bf16 and e4m3 on the device: the storage types of reference/numeric.hpp, converted by the CUDA intrinsics on
/// the GPU and by the reference's functions on the emulator.
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

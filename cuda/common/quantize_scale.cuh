/// @file quantize_scale.cuh
/// The scale of a row, to the bit what reference/quantize.cpp computes.
#pragma once

#include "../../reference/contracts.hpp"

#include "../device/device.cuh"

namespace dsa {

/// max(amax, |x|), ignoring NaN and infinities, which do not choose the scale.
DSA_DEVICE float larger_magnitude(float amax, float x) {
  const float magnitude = fabsf(x);
  return magnitude < INFINITY ? fmaxf(amax, magnitude) : amax;   // NaN fails the comparison
}

/// max(amax, 1e-4) / 448, rounded up to a power of two in kRowPow2 mode, 1 in kNone mode.
// [scale_of]
DSA_DEVICE float scale_of(float amax, ScaleMode mode) {
  if (mode == ScaleMode::kNone) return 1.0f;
  const float scale = fmaxf(amax, 1e-4f) / kE4m3Max;
  if (mode == ScaleMode::kRow) return scale;
  // A mantissa of zero is a power of two already. Otherwise clear it and go up one exponent; |scale| lies between
  // 2^-23 and 2^120, so neither end of the exponent range is near.
  const uint32_t bits = __float_as_uint(scale);
  const uint32_t mantissa = bits & 0x007fffffu;
  return __uint_as_float(mantissa ? bits - mantissa + 0x00800000u : bits);
// [scale_of]
}

}  // namespace dsa

/// @file numeric.hpp
/// The two storage types of DeepSeek Sparse Attention, bf16 and e4m3, and their conversions on the host.
///
/// The same structs are used by the reference, the harness and the kernels. Kernels convert through
/// cuda/device/numeric.cuh, which uses these functions on the emulator and the CUDA intrinsics on the GPU.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace dsa {

/// bfloat16: the upper 16 bits of an IEEE binary32.
struct bf16 {
  uint16_t bits;
};

/// OCP FP8 E4M3 (arXiv 2209.05433, table 1): 1 sign, 4 exponent (bias 7), 3 mantissa bits. Largest finite
/// value 448, smallest subnormal 2^-9, no infinities; 0x7f and 0xff are NaN.
struct e4m3 {
  uint8_t bits;
};

inline constexpr float kE4m3Max = 448.0f;

/// Exact.
inline float to_float(bf16 x) { return std::bit_cast<float>(uint32_t(x.bits) << 16); }

/// Exact; NaN for the two NaN encodings.
inline float to_float(e4m3 x) {
  const int exponent = (x.bits >> 3) & 15;
  const int mantissa = x.bits & 7;
  float magnitude;
  if (exponent == 15 && mantissa == 7) {
    magnitude = std::bit_cast<float>(0x7fc00000u);
  } else if (exponent == 0) {
    magnitude = std::ldexp(float(mantissa), -9);  // subnormal: mantissa * 2^-3 * 2^-6
  } else {
    magnitude = std::ldexp(float(8 + mantissa), exponent - 10);  // (1 + mantissa/8) * 2^(exponent-7)
  }
  return (x.bits & 0x80) ? -magnitude : magnitude;
}

/// Rounds to nearest, ties to even. Values past the largest finite bf16 become infinity; NaN stays NaN
/// (quietened to 0x7fff, as the hardware conversion does).
inline bf16 to_bf16(float x) {
  const uint32_t u = std::bit_cast<uint32_t>(x);
  if (std::isnan(x)) return {0x7fff};
  return {uint16_t((u + 0x7fff + ((u >> 16) & 1)) >> 16)};
}

/// Rounds to nearest, ties to even, and saturates to +-448 (infinities too); every NaN becomes 0x7f.
inline e4m3 to_e4m3(float x) {
  if (std::isnan(x)) return {0x7f};
  const uint8_t sign = std::signbit(x) ? 0x80 : 0;
  const float magnitude = std::fabs(x);
  if (magnitude >= kE4m3Max) return {uint8_t(sign | 0x7e)};
  // One unit in the last place is 2^(exponent-3), and never less than the subnormal step 2^-9.
  int exponent = -6;
  if (magnitude >= std::ldexp(1.0f, -6)) exponent = std::ilogb(magnitude);
  const float steps = std::nearbyint(std::ldexp(magnitude, 3 - exponent));  // 0..16, ties to even
  // steps 8..15 are the mantissas of a normal number; 16 carries into the next exponent by plain addition.
  const int code = (exponent + 6) * 8 + int(steps);
  return {uint8_t(sign | code)};
}

}  // namespace dsa

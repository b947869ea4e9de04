/// @file sortable_key.cuh
/// Floats as unsigned integers that compare the same way, which is what a radix select needs.
#pragma once

#include "../device/device.cuh"

namespace dsa {

/// Key of a logit that is never selected: NaN and -inf. Every other key is larger.
inline constexpr uint32_t kNeverSelected = 0;

/// a < b exactly when sortable_key(a) < sortable_key(b); -0 and +0 share a key.
// [sortable_key]
DSA_DEVICE uint32_t sortable_key(float x) {
  if (!(x > -INFINITY)) return kNeverSelected;   // NaN fails every comparison
  const uint32_t bits = __float_as_uint(x + 0.0f);   // -0 + 0 is +0
  // Negative floats order backwards, so all their bits flip; positive ones move above them.
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
// [sortable_key]
}

}  // namespace dsa

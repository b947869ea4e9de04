/// @file sortable_key.cuh
/// Floats as unsigned integers that compare the same way, which is what a radix select needs.
#pragma once

#include "../device/device.cuh"

namespace dsa {

/// Key of a logit that is never selected: NaN and -inf. Every other key is larger.
inline constexpr uint32_t kNeverSelected = 0;

/// a < b exactly when sortable_key(a) < sortable_key(b); -0 and +0 share a key.
// [sortable_key]
DSA_DEVICE uint32_t selectable_key(float x) {        ///< of what is known to be neither NaN nor -inf
  const uint32_t bits = __float_as_uint(x + 0.0f);   // -0 + 0 is +0
  // Negative floats order backwards, so all their bits flip; positive ones move above them.
  return bits ^ (uint32_t(int(bits) >> 31) | 0x80000000u);
}
DSA_DEVICE uint32_t sortable_key(float x) {
  return x > -INFINITY ? selectable_key(x) : kNeverSelected;   // NaN fails every comparison
}
// [sortable_key]

/// The float with this key: the inverse of sortable_key. One key further than +inf there is a NaN.
DSA_DEVICE float float_of_key(uint32_t key) {
  return __uint_as_float(key & 0x80000000u ? key ^ 0x80000000u : ~key);
}

/// The largest float that is below all floats with this key; `key` at least that of the lowest finite float.
DSA_DEVICE float float_below_key(uint32_t key) {
  return float_of_key(key == 0x80000000u ? 0x7ffffffe : key - 1);   // 0x7fffffff would be -0
}

/// `mask` moved up by a bit, the new one being x > bound. The sign of a difference, which is two instructions on different
/// pipes, where a comparison, a selection and an `or` would share one; a NaN that an addition makes has no sign on the GPU.
// [push_above]
DSA_DEVICE uint32_t push_above(uint32_t mask, float x, float bound) {
#if defined(DSA_EMULATOR)
  return mask << 1 | (x > bound);
#else
  return __funnelshift_l(__float_as_uint(bound - x), mask, 1);
#endif
}
// [push_above]

}  // namespace dsa

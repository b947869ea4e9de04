/// @file accumulator.cuh
/// Which elements of a wgmma product a thread has, and what it does with the three others that have the rest of a row.
#pragma once

#include "../device/device.cuh"

namespace dsa {

/// Accumulator register 4 j + 2 h + i of a thread: row accumulator_row(t, h), column 8 j + accumulator_column(t) + i.
DSA_DEVICE int accumulator_row(int t, int h) { return t % 128 / 32 * 16 + t % 32 / 4 + 8 * h; }
DSA_DEVICE int accumulator_column(int t) { return t % 4 * 2; }

/// Over the four threads that share a row of an accumulator.
DSA_DEVICE float row_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}
DSA_DEVICE float row_sum(float x) {
  x += __shfl_xor_sync(0xffffffffu, x, 1);
  return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

}  // namespace dsa

/// @file block_sum.cuh
/// Sum over all threads of a CTA.
#pragma once

#include "../device/device.cuh"

namespace dsa {

/// Every thread gets the sum of all threads' `value`. Contains two `__syncthreads`, so all threads must call it.
/// @param partial one float per warp in shared memory
template <int kWarps> DSA_DEVICE float block_sum(float value, float (&partial)[kWarps]) {
  // Butterfly: after the step with distance d, every lane holds the sum over its group of 2d lanes.
  for (int distance = 16; distance > 0; distance /= 2) value += __shfl_xor_sync(0xffffffffu, value, distance);
  __syncthreads();                               // a previous call may still be reading `partial`
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = value;
  __syncthreads();
  float sum = 0;
  for (int w = 0; w < kWarps; ++w) sum += partial[w];
  return sum;
}

}  // namespace dsa

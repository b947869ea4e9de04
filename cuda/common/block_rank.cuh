/// @file block_rank.cuh
/// Where each thread's element goes when the flagged elements of a CTA are written side by side, in order.
#pragma once

#include "../device/device.cuh"

namespace dsa {

struct Rank {
  int before;   ///< flagged threads with a lower number
  int total;    ///< flagged threads of the CTA
};

/// Contains two `__syncthreads`, so all threads must call it.
/// @param warp_total one int per warp in shared memory
template <int kWarps> DSA_DEVICE Rank block_rank(bool flag, int (&warp_total)[kWarps]) {
  const unsigned ballot = __ballot_sync(0xffffffffu, flag);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  __syncthreads();                               // a previous call may still be reading `warp_total`
  if (lane == 0) warp_total[warp] = __popc(ballot);
  __syncthreads();
  Rank rank{__popc(ballot & ((1u << lane) - 1)), 0};
  for (int w = 0; w < kWarps; ++w) {
    if (w < warp) rank.before += warp_total[w];
    rank.total += warp_total[w];
  }
  return rank;
}

}  // namespace dsa

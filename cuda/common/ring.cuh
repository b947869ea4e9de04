/// @file ring.cuh
/// A ring of buffers between a producer and its consumers, each buffer with a `full` and an `empty` mbarrier.
#pragma once

#include "../device/device.cuh"
#include "../device/ptx.cuh"

namespace dsa {

/// Where a thread is in the ring: which buffer, and the parity to wait for, which flips whenever the ring has been gone
/// round. A fresh mbarrier is in phase 0, and waiting for the parity of the phase before it, 1, returns at once: so a
/// producer starts with 1 and finds every buffer empty, a consumer starts with 0 and waits for the first fill.
// [ring]
template <int kStages> struct RingPosition {
  int stage;
  unsigned parity;
  DSA_DEVICE static RingPosition producer() { return {0, 1}; }
  DSA_DEVICE static RingPosition consumer() { return {0, 0}; }
  DSA_DEVICE void advance() {
    if (++stage == kStages) stage = 0, parity ^= 1;
  }
};
// [ring]

// [release]
/// A warp has finished with a buffer. `empty` counts an arrival for each warp.
DSA_DEVICE void release(ptx::mbarrier& empty) {
  __syncwarp();                                       // all lanes have read what they need of it
  if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(&empty);
}
// [release]

// [release_loaded]
/// The same for a buffer that the warp read with loads and that a bulk or tensor copy will overwrite. The arrival may overtake
/// loads that are still under way, and the copy, unlike another warp's stores, does not queue up behind them. It gives back
/// whatever else the warp has loaded until then, too.
DSA_DEVICE void release_loaded(ptx::mbarrier& empty) {
  ptx::fence_proxy_async_shared();
  release(empty);
}
// [release_loaded]

}  // namespace dsa

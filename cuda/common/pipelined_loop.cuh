/// @file pipelined_loop.cuh
/// Turns "load tile i" and "compute on tile i" into a multi-stage pipeline of asynchronous copies, as the software pipeliner
/// of a compiler would.
#pragma once

#include "../device/device.cuh"
#include "../device/ptx.cuh"

namespace dsa {

/// Runs load(stage, i) and compute(stage, i) for i = 0 .. n - 1, by all threads of the block, with kStages buffers.
///
///     kStages = 3, n = 4     load 0 | load 1 | load 2    load 3
///                                            compute 0   compute 1   compute 2   compute 3
///                            prologue        steady state            epilogue
///
/// load issues cp.async into buffer `stage` and does not wait; compute may read what all threads loaded. Nothing of
/// compute(i - 1) is still under way when load overwrites its buffer, because each turn begins with a barrier.
// [loop]
template <int kStages, class Load, class Compute>
DSA_DEVICE void pipelined_loop(int n, const Load& load, const Compute& compute) {
  static_assert(kStages >= 2);
  for (int i = 0; i < kStages - 1; ++i) {            // prologue
    if (i < n) load(i, i);
    ptx::cp_async_commit_group();
  }
  for (int i = 0; i < n; ++i) {
    ptx::cp_async_wait_group<kStages - 2>();          // this thread's part of tile i has landed
    ptx::fence_proxy_async_shared();                  // and may be read by the tensor cores
    __syncthreads();                                  // so has everybody's; and compute(i - 1) is over
    const int next = i + kStages - 1;
    if (next < n) load(next % kStages, next);
    ptx::cp_async_commit_group();                     // empty in the epilogue, so that the count stays right
    compute(i % kStages, i);
  }
}
// [loop]

}  // namespace dsa

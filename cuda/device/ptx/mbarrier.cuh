/// @file mbarrier.cuh
/// mbarrier: a barrier object in shared memory that counts arrivals of threads and bytes of asynchronous copies.
///
/// A phase completes when the pending arrivals and the pending bytes (tx-count) are both zero; the arrivals are then
/// reset to the count of mbarrier_init and the next phase begins. A wait names the parity of the phase it waits for:
/// the first phase has parity 0. On a fresh barrier a wait for parity 1, the "phase before the first", returns at once.
///
/// PTX ISA: "Parallel Synchronization and Communication Instructions: mbarrier.*". Everything here belongs to the
/// generic proxy; only the completion of bytes comes from the async proxy.
#pragma once

#include "address.cuh"

namespace dsa::ptx {

/// 8 bytes in shared memory, opaque.
using mbarrier = uint64_t;

/// `mbarrier.init.shared.b64`: the first phase begins, `count` arrivals pending. One thread, once; others may touch the
/// barrier after fence_mbarrier_init() or __syncthreads().
DSA_DEVICE void mbarrier_init(mbarrier* bar, unsigned count) {
#if defined(DSA_EMULATOR)
  emulator::mbarrier_init(bar, count);
#else
  cuda::ptx::mbarrier_init(bar, count);
#endif
}

/// `fence.mbarrier_init.release.cluster`: makes the thread's earlier mbarrier_init visible to the cluster and to the
/// async proxy. The initialising thread, followed by __syncthreads() or a cluster barrier.
DSA_DEVICE void fence_mbarrier_init() {
#if !defined(DSA_EMULATOR)
  cuda::ptx::fence_mbarrier_init(cuda::ptx::sem_release, cuda::ptx::scope_cluster);
#endif
}

/// `mbarrier.arrive.shared.b64` (release.cta): one arrival; the thread's earlier accesses come before it. Any thread.
DSA_DEVICE void mbarrier_arrive(mbarrier* bar) {
#if defined(DSA_EMULATOR)
  emulator::mbarrier_arrive(bar, 1);
#else
  cuda::ptx::mbarrier_arrive(bar);
#endif
}

/// The same with `count` arrivals at once.
DSA_DEVICE void mbarrier_arrive(mbarrier* bar, unsigned count) {
#if defined(DSA_EMULATOR)
  emulator::mbarrier_arrive(bar, count);
#else
  cuda::ptx::mbarrier_arrive(bar, count);
#endif
}

/// `mbarrier.arrive.release.cluster.shared::cluster.b64`: one arrival at a barrier of any CTA of the cluster. Any
/// thread. The waiter needs mbarrier_wait_parity_cluster(). The release costs a wait for all the thread's writes,
/// those to global memory too (MEMBAR.ALL.GPU in SASS): one arrival per warp, after __syncwarp(), is better than 32.
/// @param mapped_bar  from map_to_cluster()
DSA_DEVICE void mbarrier_arrive_cluster(mbarrier* mapped_bar) {
#if defined(DSA_EMULATOR)
  emulator::mbarrier_arrive(mapped_bar, 1);
#else
  cuda::ptx::mbarrier_arrive(cuda::ptx::sem_release, cuda::ptx::scope_cluster, cuda::ptx::space_cluster, mapped_bar);
#endif
}

/// `mbarrier.expect_tx.relaxed.cta.shared::cta.b64`: the current phase also waits for `bytes` bytes. Any thread.
DSA_DEVICE void mbarrier_expect_tx(mbarrier* bar, unsigned bytes) {
#if defined(DSA_EMULATOR)
  emulator::mbarrier_expect_tx(bar, bytes);
#else
  cuda::ptx::mbarrier_expect_tx(cuda::ptx::sem_relaxed, cuda::ptx::scope_cta, cuda::ptx::space_shared, bar, bytes);
#endif
}

/// `mbarrier.arrive.expect_tx.release.cta.shared::cta.b64`: expect_tx, then one arrival, as one operation. Any thread.
DSA_DEVICE void mbarrier_arrive_expect_tx(mbarrier* bar, unsigned bytes) {
#if defined(DSA_EMULATOR)
  emulator::mbarrier_expect_tx(bar, bytes);
  emulator::mbarrier_arrive(bar, 1);
#else
  cuda::ptx::mbarrier_arrive_expect_tx(cuda::ptx::sem_release, cuda::ptx::scope_cta, cuda::ptx::space_shared, bar,
                                       bytes);
#endif
}

/// `mbarrier.try_wait.parity.acquire.cta.shared::cta.b64`: true when the phase of this parity is complete; may suspend
/// the thread for a while first. False promises nothing. Any thread.
DSA_DEVICE bool mbarrier_try_wait_parity(mbarrier* bar, unsigned parity) {
#if defined(DSA_EMULATOR)
  return emulator::mbarrier_try_wait_parity(bar, parity);
#else
  return cuda::ptx::mbarrier_try_wait_parity(cuda::ptx::sem_acquire, cuda::ptx::scope_cta, bar, parity);
#endif
}

/// `mbarrier.test_wait.parity.acquire.cta.shared::cta.b64`: the same without waiting. Any thread.
DSA_DEVICE bool mbarrier_test_wait_parity(mbarrier* bar, unsigned parity) {
#if defined(DSA_EMULATOR)
  return emulator::mbarrier_test_wait_parity(bar, parity);
#else
  return cuda::ptx::mbarrier_test_wait_parity(cuda::ptx::sem_acquire, cuda::ptx::scope_cta, bar, parity);
#endif
}

/// mbarrier_try_wait_parity() with `.acquire.cluster`: for phases that threads of other CTAs arrive at.
DSA_DEVICE bool mbarrier_try_wait_parity_cluster(mbarrier* bar, unsigned parity) {
#if defined(DSA_EMULATOR)
  return emulator::mbarrier_try_wait_parity(bar, parity);
#else
  return cuda::ptx::mbarrier_try_wait_parity(cuda::ptx::sem_acquire, cuda::ptx::scope_cluster, bar, parity);
#endif
}

/// The loop around mbarrier_try_wait_parity() that every wait is.
DSA_DEVICE void mbarrier_wait_parity(mbarrier* bar, unsigned parity) {
  while (!mbarrier_try_wait_parity(bar, parity)) {
  }
}

/// The loop around mbarrier_try_wait_parity_cluster().
DSA_DEVICE void mbarrier_wait_parity_cluster(mbarrier* bar, unsigned parity) {
  while (!mbarrier_try_wait_parity_cluster(bar, parity)) {
  }
}

}  // namespace dsa::ptx

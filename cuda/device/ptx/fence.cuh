/// @file fence.cuh
/// Order between proxies, barriers of a part of the CTA and of the cluster, registers per warpgroup, one lane of a
/// warp.
#pragma once

#include "address.cuh"

namespace dsa::ptx {

// ---- Proxies ----------------------------------------------------------------------------------------------------
// Loads, stores, cp.async, ldmatrix and stmatrix work through the generic proxy; bulk and tensor copies and wgmma's
// operands in shared memory through the async proxy. A barrier alone does not order one against the other.

/// `fence.proxy.async`: the thread's earlier generic accesses to global and shared memory come before async accesses
/// that are ordered after the fence. Every thread that wrote what they read, or read what they overwrite, before the barrier
/// that whoever starts them waits at.
/// PTX ISA: "Parallel Synchronization and Communication Instructions: membar / fence".
DSA_DEVICE void fence_proxy_async() {
#if defined(DSA_EMULATOR)
  emulator::fence_proxy_async();
#else
  cuda::ptx::fence_proxy_async();
#endif
}

/// `fence.proxy.async.shared::cta`: the same for this CTA's shared memory only, which is much cheaper: the other waits
/// for the thread's writes to global memory too.
DSA_DEVICE void fence_proxy_async_shared() {
#if defined(DSA_EMULATOR)
  emulator::fence_proxy_async();
#else
  cuda::ptx::fence_proxy_async(cuda::ptx::space_shared);
#endif
}

// ---- Named barriers ---------------------------------------------------------------------------------------------
// Sixteen per CTA; 0 is the one of __syncthreads(). Whole warps take part. PTX ISA: "... : bar{.cta}, barrier{.cta}".

/// `bar.sync id, threads`: waits until `threads` threads have come to the barrier. Whole warps.
/// @param threads  all that come, arriving ones too; a multiple of 32
DSA_DEVICE void barrier_sync(unsigned id, unsigned threads) {
#if defined(DSA_EMULATOR)
  emulator::named_barrier_sync(id, threads);
#else
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
#endif
}

/// `bar.red.and.pred id, threads`: the same, and tells all of them whether `predicate` was true for every one.
DSA_DEVICE bool barrier_all(unsigned id, unsigned threads, bool predicate) {
#if defined(DSA_EMULATOR)
  return emulator::named_barrier_count(id, threads, predicate) == int(threads);
#else
  unsigned all;
  asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.u32 p, %3, 0;\n\tbar.red.and.pred p, %1, %2, p;\n\tselp.u32 %0, 1, 0, p;\n\t}"
               : "=r"(all) : "r"(id), "r"(threads), "r"(unsigned(predicate)) : "memory");
  return all;
#endif
}

/// `bar.arrive id, threads`: comes to the barrier and does not wait. Whole warps.
DSA_DEVICE void barrier_arrive(unsigned id, unsigned threads) {
#if defined(DSA_EMULATOR)
  emulator::named_barrier_arrive(id, threads);
#else
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
#endif
}

// ---- The cluster's barrier ----------------------------------------------------------------------------------------
/// `barrier.cluster.arrive.release`: every thread of the cluster, once per round. PTX ISA: "... : barrier.cluster".
DSA_DEVICE void cluster_arrive() {
#if defined(DSA_EMULATOR)
  emulator::cluster_arrive();
#else
  cuda::ptx::barrier_cluster_arrive(cuda::ptx::sem_release);
#endif
}

/// `barrier.cluster.wait.acquire`: until every thread of the cluster has arrived. Every thread, after its arrival. A
/// CTA whose shared memory others still access must not exit before it.
DSA_DEVICE void cluster_wait() {
#if defined(DSA_EMULATOR)
  emulator::cluster_wait();
#else
  cuda::ptx::barrier_cluster_wait(cuda::ptx::sem_acquire);
#endif
}

// ---- Registers --------------------------------------------------------------------------------------------------
/// `setmaxnreg.inc.sync.aligned.u32`: raises the registers per thread, waiting until the CTA has that many free. All
/// warps of a warpgroup, in a kernel with __launch_bounds__(threads, 1). PTX ISA: "Miscellaneous Instructions".
template <int kRegisters> DSA_DEVICE void setmaxnreg_inc() {
  static_assert(kRegisters >= 24 && kRegisters <= 256 && kRegisters % 8 == 0, "a multiple of 8 from 24 to 256");
#if defined(DSA_EMULATOR)
  emulator::setmaxnreg_inc(kRegisters);
#else
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters) : "memory");
#endif
}

/// `setmaxnreg.dec.sync.aligned.u32`: gives registers back.
template <int kRegisters> DSA_DEVICE void setmaxnreg_dec() {
  static_assert(kRegisters >= 24 && kRegisters <= 256 && kRegisters % 8 == 0, "a multiple of 8 from 24 to 256");
#if defined(DSA_EMULATOR)
  emulator::setmaxnreg_dec(kRegisters);
#else
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters) : "memory");
#endif
}

// ---- One lane -----------------------------------------------------------------------------------------------------
/// `elect.sync _|p, 0xffffffff`: true in one lane of the warp, always the same one. All 32 lanes, converged.
/// PTX ISA: "Parallel Synchronization and Communication Instructions: elect.sync".
DSA_DEVICE bool elect_sync() {
#if defined(DSA_EMULATOR)
  return emulator::elect_sync();
#else
  uint32_t elected;
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "elect.sync _|p, 0xffffffff;\n"
      "selp.u32 %0, 1, 0, p;\n"
      "}\n"
      : "=r"(elected)::"memory");
  return elected != 0;
#endif
}

}  // namespace dsa::ptx

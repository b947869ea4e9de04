/// @file async_copy.cuh
/// Copies that run beside the thread that starts them.
///
/// | family                    | who issues       | proxy   | completion                                          |
/// |---------------------------|------------------|---------|-----------------------------------------------------|
/// | `cp.async`, 4 to 16 bytes | every thread     | generic | the thread's cp.async groups, or an mbarrier arrival |
/// | `cp.async.bulk` to smem   | one thread       | async   | bytes on an mbarrier                                |
/// | `cp.async.bulk` to gmem   | one thread       | async   | the thread's bulk groups                            |
/// | `st.async`                | any thread       | async   | bytes on an mbarrier of the receiving CTA           |
///
/// Between accesses of different proxies to the same shared memory stands a fence_proxy_async() (fence.cuh).
/// PTX ISA: "Data Movement and Conversion Instructions: Asynchronous copy" and below, by instruction.
#pragma once

#include "mbarrier.cuh"

namespace dsa::ptx {

// ---- Prefetches -------------------------------------------------------------------------------------------------
/// `prefetch.global.L2`: asks for the cache line of `gmem`. Any thread; no effect on values.
DSA_DEVICE void prefetch_l2([[maybe_unused]] const void* gmem) {
#if !defined(DSA_EMULATOR)
  asm volatile("prefetch.global.L2 [%0];" ::"l"(__cvta_generic_to_global(gmem)) : "memory");
#endif
}

/// `cp.async.bulk.prefetch.L2.global`: asks for `bytes` bytes. One thread; address and size multiples of 16.
DSA_DEVICE void cp_async_bulk_prefetch_l2([[maybe_unused]] const void* gmem, [[maybe_unused]] unsigned bytes) {
#if !defined(DSA_EMULATOR)
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(__cvta_generic_to_global(gmem)), "r"(bytes)
               : "memory");
#endif
}

// ---- cp.async: a few bytes per thread -----------------------------------------------------------------------------
/// `cp.async.cg.shared.global [smem], [gmem], 16, source_bytes`: 16 bytes past L1, of which the last
/// 16 - source_bytes are zeros and are not read from gmem. Any thread; generic proxy; both addresses multiples of 16.
/// With source_bytes = 0 nothing is read, but gmem must still be an address in an allocation.
DSA_DEVICE void cp_async_16(void* smem, const void* gmem, unsigned source_bytes = 16) {
#if defined(DSA_EMULATOR)
  emulator::cp_async(smem, gmem, 16, source_bytes);
#else
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(smem_address(smem)),
               "l"(__cvta_generic_to_global(gmem)), "r"(source_bytes)
               : "memory");
#endif
}

/// The same with `.L2::256B`: L2 fetches the 256 bytes around. For gathers whose rows are longer than that.
/// There is no form with `.L2::cache_hint` here: ptxas 13.0 assembles it with a register that does not hold the policy
/// (`desc[UR1]`) when address and policy are both uniform, and the chip stops with "illegal instruction".
DSA_DEVICE void cp_async_16_l2_256B(void* smem, const void* gmem, unsigned source_bytes = 16) {
#if defined(DSA_EMULATOR)
  emulator::cp_async(smem, gmem, 16, source_bytes);
#else
  asm volatile("cp.async.cg.shared.global.L2::256B [%0], [%1], 16, %2;" ::"r"(smem_address(smem)),
               "l"(__cvta_generic_to_global(gmem)), "r"(source_bytes)
               : "memory");
#endif
}

/// `cp.async.ca.shared.global [smem], [gmem], 8, source_bytes`: 8 bytes through L1. As cp_async_16 otherwise.
DSA_DEVICE void cp_async_8(void* smem, const void* gmem, unsigned source_bytes = 8) {
#if defined(DSA_EMULATOR)
  emulator::cp_async(smem, gmem, 8, source_bytes);
#else
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(smem_address(smem)),
               "l"(__cvta_generic_to_global(gmem)), "r"(source_bytes)
               : "memory");
#endif
}

/// `cp.async.ca.shared.global [smem], [gmem], 4, source_bytes`: 4 bytes through L1.
DSA_DEVICE void cp_async_4(void* smem, const void* gmem, unsigned source_bytes = 4) {
#if defined(DSA_EMULATOR)
  emulator::cp_async(smem, gmem, 4, source_bytes);
#else
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(smem_address(smem)),
               "l"(__cvta_generic_to_global(gmem)), "r"(source_bytes)
               : "memory");
#endif
}

/// `cp.async.commit_group`: closes the thread's current group of cp.async. Any thread.
DSA_DEVICE void cp_async_commit_group() {
#if defined(DSA_EMULATOR)
  emulator::cp_async_commit_group();
#else
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

/// `cp.async.wait_group N`: until all but the thread's N newest groups have landed. Only this thread's own copies: a
/// barrier must follow before others read them. Any thread.
template <int kPending> DSA_DEVICE void cp_async_wait_group() {
  static_assert(kPending >= 0);
#if defined(DSA_EMULATOR)
  emulator::cp_async_wait_group(kPending);
#else
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
#endif
}

/// `cp.async.mbarrier.arrive.b64`: when all earlier cp.async of the thread have landed, the system arrives for it. The
/// pending count is raised by one first, so the arrival is not among those of mbarrier_init. Any thread.
DSA_DEVICE void cp_async_mbarrier_arrive(mbarrier* bar) {
#if defined(DSA_EMULATOR)
  emulator::cp_async_mbarrier_arrive(bar, false);
#else
  cuda::ptx::cp_async_mbarrier_arrive(bar);
#endif
}

/// `cp.async.mbarrier.arrive.noinc.b64`: the same without raising the count: the arrival is one of mbarrier_init's.
DSA_DEVICE void cp_async_mbarrier_arrive_noinc(mbarrier* bar) {
#if defined(DSA_EMULATOR)
  emulator::cp_async_mbarrier_arrive(bar, true);
#else
  cuda::ptx::cp_async_mbarrier_arrive_noinc(bar);
#endif
}

// ---- cp.async.bulk: one thread moves a contiguous piece ---------------------------------------------------------
// Addresses and sizes are multiples of 16. Which bytes land first is not defined; only the completion is.

/// `cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes`: gmem to this CTA's smem; completes `bytes` on
/// `bar`, which some thread must expect (mbarrier_arrive_expect_tx). One thread; async proxy.
DSA_DEVICE void cp_async_bulk_load(void* smem, const void* gmem, unsigned bytes, mbarrier* bar) {
#if defined(DSA_EMULATOR)
  emulator::bulk_load(smem, gmem, bytes, bar);
#else
  // An address of one's own shared memory is also one in the cluster's window, so this form needs no newer PTX.
  cuda::ptx::cp_async_bulk(cuda::ptx::space_cluster, cuda::ptx::space_global, smem, gmem, bytes, bar);
#endif
}

/// `cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes`: this CTA's smem to that of another CTA of
/// the cluster, completing on a barrier there. One thread; async proxy.
/// @param mapped_smem,mapped_bar  from map_to_cluster(), both of the same CTA
DSA_DEVICE void cp_async_bulk_to_cluster(void* mapped_smem, const void* smem, unsigned bytes, mbarrier* mapped_bar) {
#if defined(DSA_EMULATOR)
  emulator::bulk_load(mapped_smem, smem, bytes, mapped_bar);
#else
  cuda::ptx::cp_async_bulk(cuda::ptx::space_cluster, cuda::ptx::space_shared, mapped_smem, smem, bytes, mapped_bar);
#endif
}

/// `cp.async.bulk.global.shared::cta.bulk_group`: smem to gmem, in the thread's current bulk group. One thread; async
/// proxy, so a fence_proxy_async_shared() stands between the stores to smem and this.
DSA_DEVICE void cp_async_bulk_store(void* gmem, const void* smem, unsigned bytes) {
#if defined(DSA_EMULATOR)
  emulator::bulk_store(gmem, smem, bytes, emulator::BulkStore::kCopy);
#else
  cuda::ptx::cp_async_bulk(cuda::ptx::space_global, cuda::ptx::space_shared, gmem, smem, bytes);
#endif
}

/// `cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32`: adds smem to gmem, element by element, each addition
/// atomic. One thread; async proxy; in the thread's current bulk group.
DSA_DEVICE void cp_reduce_async_bulk_add_f32(float* gmem, const float* smem, unsigned bytes) {
#if defined(DSA_EMULATOR)
  emulator::bulk_store(gmem, smem, bytes, emulator::BulkStore::kAddF32);
#else
  cuda::ptx::cp_reduce_async_bulk(cuda::ptx::space_global, cuda::ptx::space_shared, cuda::ptx::op_add, gmem, smem,
                                  bytes);
#endif
}

/// `cp.async.bulk.commit_group`: closes the thread's current bulk group. The thread that stored.
DSA_DEVICE void cp_async_bulk_commit_group() {
#if defined(DSA_EMULATOR)
  emulator::bulk_commit_group();
#else
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");  // cuda::ptx's has no memory clobber
#endif
}

/// `cp.async.bulk.wait_group N`: until all but the thread's N newest bulk groups are complete, their writes visible to
/// the thread. The thread that stored.
template <int kPending> DSA_DEVICE void cp_async_bulk_wait_group() {
  static_assert(kPending >= 0);
#if defined(DSA_EMULATOR)
  emulator::bulk_wait_group(kPending, false);
#else
  cuda::ptx::cp_async_bulk_wait_group(cuda::ptx::n32_t<kPending>{});
#endif
}

/// `cp.async.bulk.wait_group.read N`: until their sources have been read, so that the shared memory is free again.
template <int kPending> DSA_DEVICE void cp_async_bulk_wait_group_read() {
  static_assert(kPending >= 0);
#if defined(DSA_EMULATOR)
  emulator::bulk_wait_group(kPending, true);
#else
  cuda::ptx::cp_async_bulk_wait_group_read(cuda::ptx::n32_t<kPending>{});
#endif
}

// ---- st.async: one value to another CTA -----------------------------------------------------------------------------
/// `st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32`: 16 bytes to another CTA of the cluster;
/// completes 16 bytes on a barrier there. Any thread.
/// @param mapped_smem,mapped_bar  from map_to_cluster(), both of the same CTA
DSA_DEVICE void st_async_v4(void* mapped_smem, uint4 value, mbarrier* mapped_bar) {
#if defined(DSA_EMULATOR)
  emulator::st_async(mapped_smem, &value, 16, mapped_bar);
#else
  const uint32_t words[4] = {value.x, value.y, value.z, value.w};
  cuda::ptx::st_async(static_cast<uint32_t*>(mapped_smem), words, mapped_bar);
#endif
}

}  // namespace dsa::ptx

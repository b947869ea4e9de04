/// @file hopper_path.cuh
/// A small kernel that goes the whole way of a Hopper attention kernel, so that the emulator can be compared with the chip:
/// rows gathered by cp.async into a two-stage ring, two consumer warpgroups, wgmma with A from shared memory and from
/// registers, the same tile as K-major and as MN-major operand, stmatrix, named barriers, setmaxnreg, bulk copies.
///
///     S = Q K^T,  P = clamp(S, -8, 8) as bf16,  O = sum over tiles of P K        Q: 64 x 128, K: gathered rows of 128
///
/// With small integers as inputs every intermediate value is exact in bf16 and float, so O has one right answer.
///
///     warpgroup 0: producer            warpgroup 1: scores and left half       warpgroup 2: right half
///     wait empty[s]                    wait full[s]                            wait full[s]
///     [P1] gather 64 rows (cp.async)   [C1] S = Q K^T            (SS)
///     arrive full[s] (noinc)           [C2] P -> registers, smem (stmatrix)
///                                      arrive p_full  --------------------->   sync p_full
///                                      [C3] O_left += P K_left   (RS)          [R1] O_right += P K_right   (SS)
///                                      sync p_empty   <---------------------   arrive p_empty
///                                      arrive empty[s]                         arrive empty[s]
///
/// `kBreak` plants one fault; the tests require the emulator to name each (tests/emulator/hopper_faults_test.cpp).
#pragma once

#include "cuda/common/swizzle.cuh"
#include "cuda/device/device.cuh"
#include "cuda/device/ptx.cuh"
#include "cuda/device/trace.cuh"

namespace dsa::probe {

enum class Break {
  kNothing,
  kNeverReleases,            ///< warpgroup 2 does not arrive on empty: deadlock
  kArrivesThrice,            ///< warpgroup 2 arrives with a count of 3
  kWrongCount,               ///< full is made for 127 of its 128 arrivals
  kExpectsTooManyBytes,      ///< the index list is 16 bytes shorter than announced
  kSamePhaseAgain,           ///< consumers never flip the parity
  kNoBarrierAfterInit,       ///< threads may use a mbarrier before it is initialised
  kDivergentDescriptor,      ///< one warp multiplies with another tile
  kOneWarpWaits,             ///< one warp waits for its scores twice
  kLastWaitTwice,            ///< one warp waits once more when all is done
  kUnevenRegisters,          ///< one warp asks for fewer registers than the other three
  kIllegalDescriptor,        ///< a base offset in the descriptor
  kMisalignedCopy,           ///< cp.async to an address that is not a multiple of 16
  kTooManyRegisters,         ///< 248 registers for each consumer
  kNoProxyFence,             ///< P goes from stmatrix to wgmma without fence.proxy.async
  kReadsUnwritten,           ///< consumers do not wait for full
  kWildIndex,                ///< an index is not checked
  kPastSharedMemory,         ///< stores one row behind the block's shared memory
  kReleasesTooEarly,         ///< arrives on empty before the products are done
  kOneWarpReleases,          ///< a warp that has waited for its product arrives on empty for all four
  kReadsTooEarly,            ///< reads the scores before the wait
  kNoWgmmaFence,
  kNoCopyWait,               ///< Q is multiplied without cp.async.wait_group
  kLeavesStoreBehind,        ///< exits before the bulk store has read its source
  kTwoThreadsOneSlot,        ///< two threads write the same word without a barrier: a data race
};

constexpr int kRows = 64;                  ///< queries of Q, and keys per tile
constexpr int kColumns = 128;
constexpr int kStages = 2;
constexpr int kThreads = 384;
constexpr int kMaxIndices = 512;

struct HopperPathArgs {
  const bf16* q;             ///< [64][128]
  const bf16* k;             ///< [rows][128]
  const int32_t* indices;    ///< [tiles * 64], 16-byte aligned; a negative index gathers zeros
  float* out;                ///< [64][128]
  int rows;
  int tiles;
};

struct alignas(1024) HopperPathStorage {
  bf16 q[2][kRows * 64];                   ///< two tiles of 64 columns, 128B swizzle
  bf16 k[kStages][2][kRows * 64];          ///< the same, a ring
  bf16 p[kRows * 64];                      ///< P of the current tile
  alignas(128) float out[kRows * 64];      ///< the right half of O on its way out
  alignas(16) int32_t indices[kMaxIndices];
  ptx::mbarrier indices_full;              ///< 1 arrival, and the bytes of the list
  ptx::mbarrier full[kStages];             ///< 128 arrivals: cp.async.mbarrier.arrive.noinc of every producer thread
  ptx::mbarrier empty[kStages];            ///< 256 arrivals: every consumer thread
  int32_t scratch;
};
constexpr unsigned kPFull = 1, kPEmpty = 2;  // named barriers, 256 threads each

/// Gathers row `source` (or zeros) into row `row` of a pair of tiles; one of 8 threads, 16 bytes per tile.
DSA_DEVICE void gather_row(bf16 (&tiles)[2][kRows * 64], int row, int piece, const bf16* source, bool valid, int skew) {
  for (int half = 0; half < 2; ++half) {
    char* to = reinterpret_cast<char*>(tiles[half]) + swizzle_128B(unsigned(row * 128 + piece * 16)) + skew;
    ptx::cp_async_16(to, source + half * 64 + piece * 8, valid ? 16 : 0);
  }
}

template <Break kBreak> DSA_DEVICE void produce(HopperPathStorage& s, const HopperPathArgs& a) {
  trace_role("producer");
  ptx::setmaxnreg_dec<40>();
  const int t = threadIdx.x, piece = t % 8;
  if (t == 0) {
    const unsigned bytes = unsigned(a.tiles * kRows * 4);
    ptx::mbarrier_arrive_expect_tx(&s.indices_full, kBreak == Break::kExpectsTooManyBytes ? bytes + 16 : bytes);
    ptx::cp_async_bulk_load(s.indices, a.indices, bytes, &s.indices_full);
  }
  if constexpr (kBreak == Break::kExpectsTooManyBytes) return;
  ptx::mbarrier_wait_parity(&s.indices_full, 0);
  for (int tile = 0; tile < a.tiles; ++tile) {
    const int stage = tile % kStages;
    trace_step("[P1] gather");
    ptx::mbarrier_wait_parity(&s.empty[stage], (tile / kStages & 1) ^ 1);
    for (int row = t / 8; row < kRows; row += 16) {
      const int index = s.indices[tile * kRows + row];
      const bool valid = index >= 0;
      const int source = kBreak == Break::kWildIndex && index == 0 ? a.rows + 64 : valid ? index : 0;
      gather_row(s.k[stage], row, piece, a.k + int64_t(source) * kColumns, valid,
                 kBreak == Break::kMisalignedCopy ? 8 : 0);
    }
    ptx::cp_async_mbarrier_arrive_noinc(&s.full[stage]);
  }
}

/// The fragment of S, clamped, as the A registers of four k16 steps.
DSA_DEVICE void clamp(const float (&scores)[32], uint32_t (&p)[4][4]) {
  for (int step = 0; step < 4; ++step)
    for (int r = 0; r < 4; ++r) {
      // Register r of A: columns 8 (r / 2) of the step, rows 8 (r % 2); accumulator j = 2 step + r / 2 has the same.
      const int i = (2 * step + r / 2) * 4 + r % 2 * 2;
      p[step][r] = pack_bf16x2(fminf(fmaxf(scores[i], -8.0f), 8.0f), fminf(fmaxf(scores[i + 1], -8.0f), 8.0f));
    }
}

template <Break kBreak> DSA_DEVICE void consume_left(HopperPathStorage& s, const HopperPathArgs& a) {
  trace_role("left consumer");
  const int t = threadIdx.x % 128, warp = t / 32, lane = t % 32;
  if (kBreak == Break::kUnevenRegisters && warp == 3) ptx::setmaxnreg_inc<224>();
  else ptx::setmaxnreg_inc<kBreak == Break::kTooManyRegisters ? 248 : 232>();
  if constexpr (kBreak == Break::kExpectsTooManyBytes) return;   // or all would wait for the bytes for ever
  float scores[32], out[32];
  for (int tile = 0; tile < a.tiles; ++tile) {
    const int stage = tile % kStages;
    const unsigned parity = kBreak == Break::kSamePhaseAgain ? 0 : tile / kStages & 1;
    trace_step("[C1] scores");
    if constexpr (kBreak != Break::kReadsUnwritten) ptx::mbarrier_wait_parity(&s.full[stage], parity);
    ptx::fence_proxy_async_shared();       // the rows came through the generic proxy
    if constexpr (kBreak != Break::kNoWgmmaFence) ptx::wgmma_fence();
    for (int step = 0; step < 8; ++step) {
      const int tile_of = kBreak == Break::kDivergentDescriptor && warp == 3 && step == 5 ? 0 : step / 4;
      uint64_t q = ptx::matrix_descriptor(s.q[step / 4], ptx::Swizzle::k128B, 16, 1024);
      if constexpr (kBreak == Break::kIllegalDescriptor) q |= uint64_t(1) << 49;
      const uint64_t k = ptx::matrix_descriptor(s.k[stage][tile_of], ptx::Swizzle::k128B, 16, 1024);
      ptx::wgmma_m64n64k16_bf16_ss<false, false>(scores, ptx::descriptor_advance(q, step % 4 * 32),
                                                 ptx::descriptor_advance(k, step % 4 * 32), step > 0);
    }
    ptx::wgmma_commit_group();
    uint32_t p[4][4];
    if constexpr (kBreak == Break::kReadsTooEarly) clamp(scores, p);
    ptx::wgmma_wait_group<0>();
    if (kBreak == Break::kOneWarpWaits && warp == 3) ptx::wgmma_wait_group<0>();
    ptx::wgmma_keep(scores);
    trace_step("[C2] clamp", 80);          // two comparisons for each of 32 values, 16 conversions
    if constexpr (kBreak != Break::kReadsTooEarly) clamp(scores, p);

    if (tile > 0) ptx::barrier_sync(kPEmpty, 256);
    for (int step = 0; step < 4; ++step) {
      // Matrix i of stmatrix is register i: rows 8 (i % 2), columns 16 step + 8 (i / 2). Lane l points at row l % 8 of matrix l / 8.
      const int row = warp * 16 + lane / 8 % 2 * 8 + lane % 8, column = 16 * step + lane / 16 * 8;
      ptx::stmatrix_x4(reinterpret_cast<char*>(s.p) + swizzle_128B(unsigned(row * 128 + column * 2)), p[step]);
    }
    if constexpr (kBreak != Break::kNoProxyFence) ptx::fence_proxy_async_shared();
    ptx::barrier_arrive(kPFull, 256);

    trace_step("[C3] left half");
    ptx::wgmma_fence();
    for (int step = 0; step < 4; ++step) {
      // K as V: 16 keys are 2 groups of 8 rows of 128 bytes, 64 columns wide.
      const uint64_t v = ptx::matrix_descriptor(s.k[stage][0] + step * 16 * 64, ptx::Swizzle::k128B, 8192, 1024);
      ptx::wgmma_m64n64k16_bf16_rs<true>(out, p[step], v, tile + step > 0);
    }
    ptx::wgmma_commit_group();
    if constexpr (kBreak == Break::kReleasesTooEarly) ptx::mbarrier_arrive(&s.empty[stage]);
    ptx::wgmma_wait_group<0>();
    ptx::wgmma_keep(out);
    if constexpr (kBreak != Break::kReleasesTooEarly) ptx::mbarrier_arrive(&s.empty[stage]);
  }
  trace_step("store");
  for (int i = 0; i < 32; ++i) {
    const int row = warp * 16 + lane / 4 + i / 2 % 2 * 8, column = i / 4 * 8 + lane % 4 * 2 + i % 2;
    a.out[row * kColumns + column] = out[i];
  }
  if constexpr (kBreak == Break::kTwoThreadsOneSlot) s.scratch = t;
  if (kBreak == Break::kLastWaitTwice && warp == 3) ptx::wgmma_wait_group<0>();
}

template <Break kBreak> DSA_DEVICE void consume_right(HopperPathStorage& s, const HopperPathArgs& a) {
  trace_role("right consumer");
  ptx::setmaxnreg_inc<kBreak == Break::kTooManyRegisters ? 248 : 232>();
  if constexpr (kBreak == Break::kExpectsTooManyBytes) return;
  const int t = threadIdx.x % 128, warp = t / 32, lane = t % 32;
  float out[32];
  for (int tile = 0; tile < a.tiles; ++tile) {
    const int stage = tile % kStages;
    const unsigned parity = kBreak == Break::kSamePhaseAgain ? 0 : tile / kStages & 1;
    trace_step("[R1] right half");
    if constexpr (kBreak != Break::kReadsUnwritten) ptx::mbarrier_wait_parity(&s.full[stage], parity);
    ptx::fence_proxy_async_shared();
    ptx::barrier_sync(kPFull, 256);
    ptx::wgmma_fence();
    for (int step = 0; step < 4; ++step) {
      const uint64_t p = ptx::matrix_descriptor(s.p, ptx::Swizzle::k128B, 16, 1024);
      const uint64_t v = ptx::matrix_descriptor(s.k[stage][1] + step * 16 * 64, ptx::Swizzle::k128B, 8192, 1024);
      ptx::wgmma_m64n64k16_bf16_ss<false, true>(out, ptx::descriptor_advance(p, step * 32), v, tile + step > 0);
    }
    ptx::wgmma_commit_group();
    ptx::wgmma_wait_group<0>();
    ptx::wgmma_keep(out);
    if (tile + 1 < a.tiles) ptx::barrier_arrive(kPEmpty, 256);
    if constexpr (kBreak == Break::kOneWarpReleases) {
      if (warp == 0) ptx::mbarrier_arrive(&s.empty[stage], 4);
    } else if constexpr (kBreak != Break::kNeverReleases) {
      ptx::mbarrier_arrive(&s.empty[stage], kBreak == Break::kArrivesThrice ? 3 : 1);
    }
  }
  // Through shared memory, and out by bulk copies of rows.
  trace_step("store");
  for (int i = 0; i < 32; ++i) {
    const int row = warp * 16 + lane / 4 + i / 2 % 2 * 8, column = i / 4 * 8 + lane % 4 * 2 + i % 2;
    s.out[row * 64 + column] = out[i];
  }
  if constexpr (kBreak == Break::kPastSharedMemory) reinterpret_cast<float*>(&s + 1)[t] = 0;
  ptx::fence_proxy_async_shared();
  __syncwarp();
  if (lane < 16) {
    const int row = warp * 16 + lane;      // a warp sends the rows that it wrote
    ptx::cp_async_bulk_store(a.out + row * kColumns + 64, s.out + row * 64, 64 * 4);
    ptx::cp_async_bulk_commit_group();
    if constexpr (kBreak != Break::kLeavesStoreBehind) ptx::cp_async_bulk_wait_group_read<0>();
  }
}

template <Break kBreak>
static __global__ void __launch_bounds__(kThreads, 1) hopper_path(const HopperPathArgs a) {
  HopperPathStorage& s = shared_memory<HopperPathStorage>();
  const int t = threadIdx.x;
  trace_step("load Q");
  for (int row = t / 8; row < kRows; row += kThreads / 8) gather_row(s.q, row, t % 8, a.q + row * kColumns, true, 0);
  ptx::cp_async_commit_group();
  if constexpr (kBreak != Break::kNoCopyWait) ptx::cp_async_wait_group<0>();
  ptx::fence_proxy_async_shared();
  if (t == 0) {
    ptx::mbarrier_init(&s.indices_full, 1);
    for (int i = 0; i < kStages; ++i) {
      ptx::mbarrier_init(&s.full[i], kBreak == Break::kWrongCount ? 127 : 128);
      ptx::mbarrier_init(&s.empty[i], 256);
    }
    ptx::fence_mbarrier_init();
  }
  if constexpr (kBreak != Break::kNoBarrierAfterInit) __syncthreads();
  switch (t / 128) {
    case 0: return produce<kBreak>(s, a);
    case 1: return consume_left<kBreak>(s, a);
    default: return consume_right<kBreak>(s, a);
  }
}

template <Break kBreak> cudaError_t launch_hopper_path(const HopperPathArgs& args) {
  return launch(hopper_path<kBreak>, {dim3(1), dim3(kThreads), sizeof(HopperPathStorage)}, args);
}

}  // namespace dsa::probe

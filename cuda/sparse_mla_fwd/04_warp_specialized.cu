/// @file 04_warp_specialized.cu
/// Sparse MLA forward, rung 4: one warpgroup gathers, two multiply, and nobody waits for the whole CTA.
///
/// | before        | 03_auto_pipelined.cu: all threads copy, multiply and meet at barriers, in step               |
/// |---------------|------------------------------------------------------------------------------------------------|
/// | **this rung** | a producer warpgroup and a ring of mbarriers; scores in one consumer, output split over both    |
/// | next          | 05_seesaw.cu: both consumers make scores, so that the tensor cores work under every softmax      |
/// | reference     | reference/sparse_mla_fwd.cpp                                                                    |
/// | chapter       | @ref sparse_mla_fwd_04                                                                          |
///
///     warpgroup 2: producer        warpgroup 0: scores, left half          warpgroup 1: right half
///     -----------------------      -----------------------------------     ------------------------------------
///     [P1] wait empty[s]           [A1] wait full[s]; S = Q K^T            [B1] sync p_full (tile j)
///          64 rows -> k[s]         [A2] m, P = exp(S - m); sync p_empty         O_right = O_right * factor + P V
///          arrive full[s]               P, factor -> smem; arrive p_full   [B2] arrive p_empty, empty[s]
///                                  [A3] O_left = O_left * factor + P V
///                                       arrive empty[s], under the next S
///
/// Shared memory  Q 72 KiB + K 2 x 72 KiB + P 8 KiB + 1 KiB = 225 KiB of 227 KiB: 1 CTA per SM.
/// Registers      producer 80, scores 240, right half 168: 128 * 488 = 62464 of 64512.
#include "../common/mla_producer.cuh"
#include "../common/mla_products.cuh"
#include "../common/register.cuh"
#include "../device/trace.cuh"

namespace dsa::sparse_mla_fwd_04 {

constexpr int kThreads = 384;
constexpr int kStages = 2;
constexpr int kHalf = kDimV / 2;                      ///< output columns of a consumer

struct SharedStorage {
  ColumnTile q[kQKTiles];
  KeyTile k[kStages];                                 ///< at the end, the output
  ColumnTile p;
  KeyTileState ring[kStages];                         ///< empty: 8 arrivals, a warp each
  ptx::mbarrier q_full;                               ///< 128 arrivals: cp.async of every producer thread
  float factor[kTileHeads];                           ///< of the current tile, for the right half; at the end, of the row
};
static_assert(sizeof(SharedStorage) <= kMaxSharedMemory);

/// Named barriers between the consumers, 256 threads each: p_full says that P and factor are there, p_empty that they have
/// been read.
constexpr unsigned kPFull = 1, kPEmpty = 2;

// ---- Producer ---------------------------------------------------------------------------------------------------------
// [producer]
DSA_DEVICE void produce(SharedStorage& s, const SparseMlaFwdArgs& a, const MlaWork& w, int tiles) {
  ptx::setmaxnreg_dec<80>();
  trace_role("producer");
  const int t = threadIdx.x % 128;
  trace_step("[P0] Q");
  copy_q<kProducerThreads>(s.q, static_cast<const bf16*>(a.q), w, t);
  ptx::cp_async_mbarrier_arrive_noinc(&s.q_full);
  ProducerRows ahead = look_up_rows(w, 0, t);
  auto at = RingPosition<kStages>::producer();
  for (int tile = 0; tile < tiles; ++tile, at.advance()) {
    trace_step("[P1] gather");
    ptx::mbarrier_wait_parity(&s.ring[at.stage].empty, at.parity);
    fill_tile(s.k[at.stage], s.ring[at.stage], w, ahead, t);
    ahead = look_up_rows(w, tile + 1, t);
  }
}
// [producer]

// ---- Consumer 0: scores, softmax, left half of the output -----------------------------------------------------------
// [start_scores]
/// Issues S = Q K^T for the next tile, as a group of its own.
DSA_DEVICE void start_scores(SharedStorage& s, const RingPosition<kStages>& at, float (&scores)[32]) {
  ptx::mbarrier_wait_parity(&s.ring[at.stage].full, at.parity);
  ptx::fence_proxy_async_shared();                    // the rows came through the generic proxy
  ptx::wgmma_fence();
  issue_scores(scores, s.q, s.k[at.stage].k);
  ptx::wgmma_commit_group();
}
// [start_scores]

// [left]
DSA_DEVICE void consume_left(SharedStorage& s, const SparseMlaFwdArgs& a, const MlaWork& w, int tiles) {
  ptx::setmaxnreg_inc<240>();
  trace_role("scores, left half");
  const int t = threadIdx.x % 128;
  const float c = a.sm_scale * kLog2E;
  float m[2] = {-INFINITY, -INFINITY};                // largest score so far of this thread's two rows
  float l[2] = {};                                    // sum of p so far, over this thread's columns
  float out[128] = {}, scores[32];
  uint32_t p[4][4];

  ptx::mbarrier_wait_parity(&s.q_full, 0);
  auto at = RingPosition<kStages>::consumer();
  if (tiles > 0) {
    trace_step("[A1] scores");
    start_scores(s, at, scores);
    ptx::wgmma_wait_group<0>();
    ptx::wgmma_keep(scores);
  }
  for (int tile = 0; tile < tiles; ++tile) {
    trace_step("[A2] softmax", 700);
    const int stage = at.stage;
    if (const uint64_t valid = s.ring[stage].valid; ~valid) mask_scores(scores, valid, t);
    float factor[2];
    for (int h = 0; h < 2; ++h) {
      const float m_new = fmaxf(m[h], tile_max(scores, h));
      factor[h] = rescale_factor(m[h], m_new, c);
      m[h] = m_new;
      l[h] = l[h] * factor[h] + exponentiate(scores, h, m_new, c);
    }
// [publish]
    for (int step = 0; step < 4; ++step) pack_fragment(scores, step, p[step]);
    if (tile > 0) ptx::barrier_sync(kPEmpty, 256);
    for (int step = 0; step < 4; ++step) store_fragment(s.p, t, step, p[step]);
    for (int h = 0; h < 2; ++h)
      if (t % 4 == 0) s.factor[accumulator_row(t, h)] = factor[h];
    ptx::fence_proxy_async_shared();
    ptx::barrier_arrive(kPFull, 256);
// [publish]

// [queue]
    trace_step("[A3] left half");
    rescale(out, factor);
    ptx::wgmma_keep(out);
    ptx::wgmma_fence();
    issue_output(out, p, s.k[stage].k, tile > 0);
    ptx::wgmma_commit_group();
    at.advance();
    trace_step("[A1] scores");
    if (tile + 1 < tiles) {
      start_scores(s, at, scores);                    // behind [A3] in the queue of the tensor cores
      ptx::wgmma_wait_group<1>();                     // for [A3]
    } else {
      ptx::wgmma_wait_group<0>();
    }
    ptx::wgmma_keep(out);
    release(s.ring[stage].empty);
    ptx::wgmma_wait_group<0>();
    ptx::wgmma_keep(scores);
// [queue]
  }

  // [A4] The rows' ends; the other consumer needs the factors.
  float factor[2];
  for (int h = 0; h < 2; ++h) factor[h] = store_row_end(a, w, t, h, m[h], row_sum(l[h]), m[h], true).factor;
  if (tiles > 0) ptx::barrier_sync(kPEmpty, 256);
  for (int h = 0; h < 2; ++h)
    if (t % 4 == 0) s.factor[accumulator_row(t, h)] = factor[h];
  ptx::barrier_arrive(kPFull, 256);
  rescale(out, factor);
  ptx::barrier_sync(kPEmpty, 256);                    // both have read K for the last time: it takes the output now
  store_output(a, w, 0, s.k[0].k, t, out);
}
// [left]

// ---- Consumer 1: right half of the output --------------------------------------------------------------------------
// [right]
DSA_DEVICE void consume_right(SharedStorage& s, const SparseMlaFwdArgs& a, const MlaWork& w, int tiles) {
  ptx::setmaxnreg_inc<168>();
  trace_role("right half");
  const int t = threadIdx.x % 128;
  float out[128] = {}, factor[2];
  auto at = RingPosition<kStages>::consumer();
  for (int tile = 0; tile < tiles; ++tile, at.advance()) {
// [right_tile]
    trace_step("[B1] right half");
    ptx::mbarrier_wait_parity(&s.ring[at.stage].full, at.parity);
    ptx::fence_proxy_async_shared();
    ptx::barrier_sync(kPFull, 256);
    for (int h = 0; h < 2; ++h) factor[h] = s.factor[accumulator_row(t, h)];
    rescale(out, factor);
    ptx::wgmma_keep(out);
    ptx::wgmma_fence();
    issue_output(out, s.p, s.k[at.stage].k + kVTiles / 2, tile > 0);
    ptx::wgmma_commit_group();
    ptx::wgmma_wait_group<0>();
    ptx::wgmma_keep(out);
    trace_step("[B2] release");
    ptx::barrier_arrive(kPEmpty, 256);
    release(s.ring[at.stage].empty);
// [right_tile]
  }
  ptx::barrier_sync(kPFull, 256);
  for (int h = 0; h < 2; ++h) factor[h] = s.factor[accumulator_row(t, h)];
  rescale(out, factor);
  ptx::barrier_arrive(kPEmpty, 256);
  store_output(a, w, kHalf, s.k[0].k + kVTiles / 2, t, out);
}
// [right]

static __global__ void __launch_bounds__(kThreads, 1) kernel(const SparseMlaFwdArgs a) {
  SharedStorage& s = shared_memory<SharedStorage>();
  const MlaWork w = mla_work(a, blockIdx.x);
  const int tiles = (w.slots + kTileKeys - 1) / kTileKeys;
  if (threadIdx.x == 0) {
    ptx::mbarrier_init(&s.q_full, kProducerThreads);
    for (int i = 0; i < kStages; ++i) {
      ptx::mbarrier_init(&s.ring[i].full, kFullArrivals);
      ptx::mbarrier_init(&s.ring[i].empty, 8);
    }
    ptx::fence_mbarrier_init();
  }
  __syncthreads();
  const int warpgroup = __shfl_sync(0xffffffffu, int(threadIdx.x) / 128, 0);   // uniform, and the compiler knows
  if (warpgroup == 2) produce(s, a, w, tiles);
  else if (warpgroup == 0) consume_left(s, a, w, tiles);
  else consume_right(s, a, w, tiles);
}

static const char* unsupported(const SparseMlaFwdArgs& a) { return tensor_core_unsupported(a); }

static cudaError_t launch(const SparseMlaFwdArgs& a, cudaStream_t stream) {
  const int64_t ctas = mla_work_count(a);
  if (ctas == 0) return cudaSuccess;
  return dsa::launch(kernel, {dim3(unsigned(ctas)), dim3(kThreads), sizeof(SharedStorage), stream}, a);
}

static const Register<SparseMlaFwdArgs, unsupported, launch> registered{
    "04_warp_specialized", "a producer warpgroup and a ring of mbarriers, two consumers", Accuracy::kBf16,
    Repeatable::kYes};

}  // namespace dsa::sparse_mla_fwd_04

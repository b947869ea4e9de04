/// @file sparse_mla_fwd_04_half_tiles.cu
/// Exercise: the ring of rung 4 with half tiles, so that a half is refilled as soon as its own readers are done.
/// The producer's part is missing, about 12 lines.
///
///     mkdir ~/my_kernels && cp walkthrough/exercises/sparse_mla_fwd_04_half_tiles.cu ~/my_kernels/
///     cmake -B build -DDSA_USER_KERNELS=$HOME/my_kernels && cmake --build build
///     build/bin/dsa check --stage sparse_mla_fwd --step ex_half_tiles --device emulator
///
/// The chapter (walkthrough/sparse_mla_fwd/04_warp_specialized.md) has the solution.
#include "cuda/common/mla_producer.cuh"
#include "cuda/common/mla_products.cuh"
#include "cuda/common/register.cuh"
#include "cuda/device/trace.cuh"

namespace ex_half_tiles {

using namespace dsa;

constexpr int kThreads = 384;
constexpr int kStages = 2;
constexpr int kHalf = kDimV / 2;                      ///< output columns of a consumer
constexpr int kLeft = 4, kRight = 5;                  ///< column tiles of a half of K; the right one has the rope columns

/// One buffer of the ring, in two halves: [0] has the columns 0-255, [1] 256-575.
struct HalfTiles {
  uint64_t valid;                                     ///< comes with half 0
  ptx::mbarrier full[2];                              ///< 130 and 128 arrivals: cp.async of every producer thread, and `valid`
  ptx::mbarrier empty[2];                             ///< 4 arrivals: the warps of consumer 0, and those of consumer 1
};

struct SharedStorage {
  ColumnTile q[kQKTiles];
  KeyTile k[kStages];                                 ///< at the end, the output
  ColumnTile p;
  HalfTiles ring[kStages];
  ptx::mbarrier q_full;                               ///< 128 arrivals: cp.async of every producer thread
  float factor[kTileHeads];                           ///< of the current tile, for the right half; at the end, of the row
};
static_assert(sizeof(SharedStorage) <= kMaxSharedMemory);

/// Named barriers between the consumers, 256 threads each: p_full says that P and factor are there, p_empty that they have
/// been read.
constexpr unsigned kPFull = 1, kPEmpty = 2;

// ---- Producer ---------------------------------------------------------------------------------------------------------
/// The column tiles first .. first + kTiles - 1 of one K tile.
template <int kTiles>
DSA_DEVICE void copy_half(KeyTile& tile, int first, const MlaWork& w, const ProducerRows& rows, int t) {
  for (int i = 0; i < 4; ++i) {
    const int source = is_visible(w, rows.row[i]) ? rows.row[i] : -1;
    copy_row<kTiles>(tile.k + first, t / 8 + 16 * i, t % 8, kv_row(w, max(source, 0)) + first * kTileColumns,
                     source >= 0);
  }
}

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
    HalfTiles& state = s.ring[at.stage];
    // ---- your code: about 12 lines ----------------------------------------------------------------------------
    // 1. For each half, in the order that you like best: wait until it is empty, copy it, announce the copies.
    // 2. `valid`, which belongs to half 0: one warp has 32 slots, and a store is not a copy.
    (void)state;
    // ---- end of your code -------------------------------------------------------------------------------------
    ahead = look_up_rows(w, tile + 1, t);
  }
}

// ---- Consumer 0: scores, softmax, left half of the output -----------------------------------------------------------
/// Issues S = Q K^T for the next tile, as a group of its own.
DSA_DEVICE void start_scores(SharedStorage& s, const RingPosition<kStages>& at, float (&scores)[32]) {
  for (int half = 0; half < 2; ++half) ptx::mbarrier_wait_parity(&s.ring[at.stage].full[half], at.parity);
  ptx::fence_proxy_async_shared();                    // the rows came through the generic proxy
  ptx::wgmma_fence();
  issue_scores(scores, s.q, s.k[at.stage].k);
  ptx::wgmma_commit_group();
}

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
    for (int step = 0; step < 4; ++step) pack_fragment(scores, step, p[step]);
    if (tile > 0) ptx::barrier_sync(kPEmpty, 256);
    for (int step = 0; step < 4; ++step) store_fragment(s.p, t, step, p[step]);
    for (int h = 0; h < 2; ++h)
      if (t % 4 == 0) s.factor[accumulator_row(t, h)] = factor[h];
    ptx::fence_proxy_async_shared();
    ptx::barrier_arrive(kPFull, 256);

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
    release(s.ring[stage].empty[0]);
    ptx::wgmma_wait_group<0>();
    ptx::wgmma_keep(scores);
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

// ---- Consumer 1: right half of the output --------------------------------------------------------------------------
DSA_DEVICE void consume_right(SharedStorage& s, const SparseMlaFwdArgs& a, const MlaWork& w, int tiles) {
  ptx::setmaxnreg_inc<168>();
  trace_role("right half");
  const int t = threadIdx.x % 128;
  float out[128] = {}, factor[2];
  auto at = RingPosition<kStages>::consumer();
  for (int tile = 0; tile < tiles; ++tile, at.advance()) {
    trace_step("[B1] right half");
    ptx::mbarrier_wait_parity(&s.ring[at.stage].full[1], at.parity);
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
    release(s.ring[at.stage].empty[1]);                // the scores are done with it too: P is made of them
  }
  ptx::barrier_sync(kPFull, 256);
  for (int h = 0; h < 2; ++h) factor[h] = s.factor[accumulator_row(t, h)];
  rescale(out, factor);
  ptx::barrier_arrive(kPEmpty, 256);
  store_output(a, w, kHalf, s.k[0].k + kVTiles / 2, t, out);
}

static __global__ void __launch_bounds__(kThreads, 1) kernel(const SparseMlaFwdArgs a) {
  SharedStorage& s = shared_memory<SharedStorage>();
  const MlaWork w = mla_work(a, blockIdx.x);
  const int tiles = (w.slots + kTileKeys - 1) / kTileKeys;
  if (threadIdx.x == 0) {
    ptx::mbarrier_init(&s.q_full, kProducerThreads);
    for (int i = 0; i < kStages; ++i) {
      ptx::mbarrier_init(&s.ring[i].full[0], kFullArrivals);
      ptx::mbarrier_init(&s.ring[i].full[1], kProducerThreads);
      ptx::mbarrier_init(&s.ring[i].empty[0], 4);
      ptx::mbarrier_init(&s.ring[i].empty[1], 4);
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
    "ex_half_tiles", "exercise: the two halves of a K tile come and go on their own", Accuracy::kBf16,
    Repeatable::kYes};

}  // namespace ex_half_tiles

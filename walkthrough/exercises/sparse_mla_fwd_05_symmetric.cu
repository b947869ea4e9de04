/// @file sparse_mla_fwd_05_symmetric.cu
/// Exercise: the seesaw of rung 5 with a symmetric exchange: each consumer waits for the other's maxima before it
/// exponentiates, and no P is scaled twice. Consumer 0's softmax is missing, about 15 lines.
///
///     mkdir ~/my_kernels && cp walkthrough/exercises/sparse_mla_fwd_05_symmetric.cu ~/my_kernels/
///     cmake -B build -DDSA_USER_KERNELS=$HOME/my_kernels && cmake --build build
///     build/bin/dsa check --stage sparse_mla_fwd --step ex_symmetric --device emulator
///
/// The chapter (walkthrough/sparse_mla_fwd/05_seesaw.md) has the solution.
#include "cuda/common/half_tile.cuh"
#include "cuda/common/mla_products.cuh"
#include "cuda/common/register.cuh"
#include "cuda/device/trace.cuh"

namespace ex_symmetric {

using namespace dsa;

constexpr int kThreads = 384;
constexpr int kHalf = kDimV / 2;                      ///< output columns of a consumer

struct SharedStorage {
  ColumnTile q[kQKTiles];
  KeyTile k[2];                                       ///< at the end, the output
  ColumnTile p1;
  HalfState left[2], right[2];                        ///< of k[0] and k[1]
  uint64_t valid[2];                                  ///< comes with K0L and K1R, the half that is filled first
  ptx::mbarrier q_full;                               ///< 128 arrivals: cp.async of every producer thread
  float m0[kTileHeads], m1[kTileHeads];               ///< of the even and of the odd tile alone
  float l[2][kTileHeads];                             ///< at the end: sums of p, by consumer
  DSA_DEVICE ColumnTile& p0() { return k[0].k[kQKTiles - 1]; }
};
static_assert(sizeof(SharedStorage) <= kMaxSharedMemory);

/// Named barriers between the consumers, 128 threads arrive and 128 wait: the value that it is named after is there.
constexpr unsigned kM0 = 1, kM1 = 2, kP0 = 3, kP1 = 4, kEnd0 = 5, kEnd1 = 6;
constexpr unsigned kBoth = 256;

// ---- Producer ---------------------------------------------------------------------------------------------------------
DSA_DEVICE void produce(SharedStorage& s, const SparseMlaFwdArgs& a, const MlaWork& w, int pairs) {
  ptx::setmaxnreg_dec<72>();
  trace_role("producer");
  const int t = threadIdx.x % 128;
  trace_step("[P0] Q");
  copy_q<kProducerThreads>(s.q, static_cast<const bf16*>(a.q), w, t);
  ptx::cp_async_mbarrier_arrive_noinc(&s.q_full);
  ProducerRows even = look_up_rows(w, 0, t), odd = look_up_rows(w, 1, t);
  auto at = RingPosition<1>::producer();              // one buffer of each kind; only the parity matters
  for (int pair = 0; pair < pairs; ++pair, at.advance()) {
    trace_step("[P1] gather");
    fill_half<kLeft>(s.left[0], at.parity, s.k[0], 0, w, even, t);
    publish_valid(s.left[0].full, s.valid[0], w, even, t);
    fill_half<kRight>(s.right[1], at.parity, s.k[1], kLeft, w, odd, t);
    publish_valid(s.right[1].full, s.valid[1], w, odd, t);
    fill_half<kRight>(s.right[0], at.parity, s.k[0], kLeft, w, even, t);
    even = look_up_rows(w, 2 * pair + 2, t);
    fill_half<kLeft>(s.left[1], at.parity, s.k[1], 0, w, odd, t);
    odd = look_up_rows(w, 2 * pair + 3, t);
  }
}

// ---- Consumer 0: even tiles, left half of the output -----------------------------------------------------------------
DSA_DEVICE void consume_even(SharedStorage& s, const SparseMlaFwdArgs& a, const MlaWork& w, int pairs) {
  ptx::setmaxnreg_inc<216>();
  trace_role("even tiles, left half");
  const int t = threadIdx.x % 128;
  const float c = a.sm_scale * kLog2E;
  float m[2] = {-INFINITY, -INFINITY}, l[2] = {}, out[128] = {}, scores[32];
  uint32_t p[4][4];

  ptx::mbarrier_wait_parity(&s.q_full, 0);
  auto at = RingPosition<1>::consumer();
  if (pairs > 0) {
    trace_step("[A5] scores");
    wait_full(s.left[0], at.parity);
    wait_full(s.right[0], at.parity);
    ptx::wgmma_fence();
    issue_scores(scores, s.q, s.k[0].k);
    ptx::wgmma_commit_group();
    ptx::wgmma_wait_group<0>();
    ptx::wgmma_keep(scores);
  }
  for (int pair = 0; pair < pairs; ++pair) {
    trace_step("[A1] softmax", 600);
    if (const uint64_t valid = s.valid[0]; ~valid) mask_scores(scores, valid, t);
    // ---- your code: about 15 lines ----------------------------------------------------------------------------
    // 1. Publish this tile's own maxima in m0; fetch the other tile's from m1, when they are there.
    // 2. The new m, scores to probabilities relative to it, l; `out` to the new m.
    // 3. P0 into `p` and into s.p0(), for the tensor cores; say so.
    (void)c;
    // ---- end of your code -------------------------------------------------------------------------------------

    trace_step("[A2] P0 V0L");
    ptx::wgmma_keep(out);
    ptx::wgmma_fence();
    issue_output(out, p, s.k[0].k, pair > 0);
    ptx::wgmma_commit_group();
    ptx::wgmma_wait_group<0>();
    ptx::wgmma_keep(out);
    release(s.left[0]);

    trace_step("[A4] P1 V1L");
    wait_full(s.left[1], at.parity);
    ptx::barrier_sync(kP1, kBoth);
    ptx::wgmma_keep(out);
    ptx::wgmma_fence();
    issue_output(out, s.p1, s.k[1].k, true);
    ptx::wgmma_commit_group();
    at.advance();
    if (pair + 1 < pairs) {
      trace_step("[A5] scores");                      // behind [A4] in the queue of the tensor cores
      wait_full(s.left[0], at.parity);
      ptx::wgmma_fence();
      issue_scores<kLeft>(scores, s.q, s.k[0].k);
      ptx::wgmma_commit_group();
      ptx::wgmma_wait_group<1>();                     // for [A4]
      release(s.left[1]);
      wait_full(s.right[0], at.parity);
      ptx::wgmma_fence();
      issue_scores<kRight>(scores, s.q + kLeft, s.k[0].k + kLeft, 0, true);
      ptx::wgmma_commit_group();
    }
    ptx::wgmma_wait_group<0>();
    ptx::wgmma_keep(out);
    ptx::wgmma_keep(scores);
  }
  if (pairs > 0) release(s.left[1]);

  trace_step("[A6] output");
  for (int h = 0; h < 2; ++h) l[h] = row_sum(l[h]);
  put_rows(s.l[0], t, l);
  ptx::barrier_arrive(kEnd0, kBoth);
  ptx::barrier_sync(kEnd1, kBoth);                    // all products are done: K takes the output now
  float other[2], factor[2];
  get_rows(s.l[1], t, other);
  for (int h = 0; h < 2; ++h) factor[h] = store_row_end(a, w, t, h, m[h], l[h] + other[h], m[h], true).factor;
  rescale(out, factor);
  store_output(a, w, 0, s.k[0].k, t, out);
}

// ---- Consumer 1: odd tiles, right half of the output -------------------------------------------------------------------
DSA_DEVICE void consume_odd(SharedStorage& s, const SparseMlaFwdArgs& a, const MlaWork& w, int pairs) {
  ptx::setmaxnreg_inc<216>();
  trace_role("odd tiles, right half");
  const int t = threadIdx.x % 128;
  const float c = a.sm_scale * kLog2E;
  float m[2] = {-INFINITY, -INFINITY}, l[2] = {}, out[128] = {}, scores[32];
  uint32_t p[4][4];

  ptx::mbarrier_wait_parity(&s.q_full, 0);
  auto at = RingPosition<1>::consumer();
  for (int pair = 0; pair < pairs; ++pair, at.advance()) {
    trace_step("[B4] scores");                        // the right half first: it arrives first
    wait_full(s.right[1], at.parity);
    ptx::wgmma_fence();
    issue_scores<kRight>(scores, s.q + kLeft, s.k[1].k + kLeft);
    ptx::wgmma_commit_group();
    wait_full(s.left[1], at.parity);
    ptx::wgmma_fence();
    issue_scores<kLeft>(scores, s.q, s.k[1].k, 0, true);
    ptx::wgmma_commit_group();
    ptx::wgmma_wait_group<0>();
    ptx::wgmma_keep(scores);

    trace_step("[B1] softmax", 600);
    if (const uint64_t valid = s.valid[1]; ~valid) mask_scores(scores, valid, t);
    float own[2], other[2], factor[2];
    for (int h = 0; h < 2; ++h) own[h] = tile_max(scores, h);
    put_rows(s.m1, t, own);
    ptx::barrier_arrive(kM1, kBoth);
    ptx::barrier_sync(kM0, kBoth);
    get_rows(s.m0, t, other);
    for (int h = 0; h < 2; ++h) {
      const float m_new = fmaxf(m[h], fmaxf(own[h], other[h]));
      factor[h] = rescale_factor(m[h], m_new, c);
      m[h] = m_new;
      l[h] = l[h] * factor[h] + exponentiate(scores, h, m_new, c);
    }
    for (int step = 0; step < 4; ++step) pack_fragment(scores, step, p[step]);

    trace_step("[B2] P1 V1R");
    rescale(out, factor);
    ptx::wgmma_keep(out);
    ptx::wgmma_fence();
    issue_output(out, p, s.k[1].k + kLeft, pair > 0);
    ptx::wgmma_commit_group();
    for (int step = 0; step < 4; ++step) store_fragment(s.p1, t, step, p[step]);
    ptx::fence_proxy_async_shared();
    ptx::barrier_arrive(kP1, kBoth);

    trace_step("[B3] P0 V0R");
    wait_full(s.right[0], at.parity);
    ptx::barrier_sync(kP0, kBoth);
    ptx::wgmma_fence();
    issue_output(out, s.p0(), s.k[0].k + kLeft, true);
    ptx::wgmma_commit_group();
    ptx::wgmma_wait_group<1>();                       // for [B2]
    release(s.right[1]);
    ptx::wgmma_wait_group<0>();
    ptx::wgmma_keep(out);
    release(s.right[0]);
  }

  trace_step("[B5] output");
  for (int h = 0; h < 2; ++h) l[h] = row_sum(l[h]);
  put_rows(s.l[1], t, l);
  ptx::barrier_arrive(kEnd1, kBoth);
  ptx::barrier_sync(kEnd0, kBoth);
  float other[2], factor[2];
  get_rows(s.l[0], t, other);
  for (int h = 0; h < 2; ++h) factor[h] = store_row_end(a, w, t, h, m[h], other[h] + l[h], m[h], false).factor;
  rescale(out, factor);
  store_output(a, w, kHalf, s.k[0].k + kLeft, t, out);
}

static __global__ void __launch_bounds__(kThreads, 1) kernel(const SparseMlaFwdArgs a) {
  SharedStorage& s = shared_memory<SharedStorage>();
  const MlaWork w = mla_work(a, blockIdx.x);
  const int pairs = (w.slots + 2 * kTileKeys - 1) / (2 * kTileKeys);
  if (threadIdx.x == 0) {
    ptx::mbarrier_init(&s.q_full, kProducerThreads);
    ptx::mbarrier_init(&s.left[0].full, kFullArrivals);
    ptx::mbarrier_init(&s.right[1].full, kFullArrivals);
    ptx::mbarrier_init(&s.right[0].full, kProducerThreads);
    ptx::mbarrier_init(&s.left[1].full, kProducerThreads);
    ptx::mbarrier_init(&s.left[0].empty, 4);
    ptx::mbarrier_init(&s.right[1].empty, 4);
    ptx::mbarrier_init(&s.right[0].empty, 4);
    ptx::mbarrier_init(&s.left[1].empty, 4);
    ptx::fence_mbarrier_init();
  }
  __syncthreads();
  const int warpgroup = __shfl_sync(0xffffffffu, int(threadIdx.x) / 128, 0);   // uniform, and the compiler knows
  if (warpgroup == 2) produce(s, a, w, pairs);
  else if (warpgroup == 0) consume_even(s, a, w, pairs);
  else consume_odd(s, a, w, pairs);
}

static const char* unsupported(const SparseMlaFwdArgs& a) { return tensor_core_unsupported(a); }

static cudaError_t launch(const SparseMlaFwdArgs& a, cudaStream_t stream) {
  const int64_t ctas = mla_work_count(a);
  if (ctas == 0) return cudaSuccess;
  return dsa::launch(kernel, {dim3(unsigned(ctas)), dim3(kThreads), sizeof(SharedStorage), stream}, a);
}

static const Register<SparseMlaFwdArgs, unsupported, launch> registered{
    "ex_symmetric", "exercise: both maxima first, then both softmaxes", Accuracy::kBf16,
    Repeatable::kYes};

}  // namespace ex_symmetric

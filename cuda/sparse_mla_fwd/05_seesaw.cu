/// @file 05_seesaw.cu
/// Sparse MLA forward, rung 5: both consumers make scores, one for even and one for odd tiles, and each owns half of the
/// output, so that one multiplies while the other exponentiates.
///
/// | before        | 04_warp_specialized.cu: one consumer makes all scores; the tensor cores idle under its softmax  |
/// |---------------|---------------------------------------------------------------------------------------------------|
/// | **this rung** | scores by turns; maxima and probabilities are exchanged; half tiles are given back one by one     |
/// | next          | 06_late_maximum.cu: no serial chain of maxima                                                        |
/// | reference     | reference/sparse_mla_fwd.cpp                                                                       |
/// | chapter       | @ref sparse_mla_fwd_05                                                                             |
///
/// Per pair of tiles: k[0] is consumer 0's, k[1] is consumer 1's. L and R are the column halves 0-255 and 256-575.
///
///     warpgroup 0                                     warpgroup 1
///     ----------------------------------------------  ---------------------------------------------------
///     [A1] m = max(m, S0), P0 = exp(S0 - m) -> m0     (S1 is being multiplied)
///     [A2] O_L += P0 V0L                   give K0L   [B1] m = max(m0, S1), P1 = exp(S1 - m) -> m1
///     [A3] P0 *= exp(m0 - m1) -> p0                   [B2] O_R += P1 V1R; P1 -> p1             give K1R
///     [A4] O_L += P1 V1L                   give K1L   [B3] O_R += P0 V0R                       give K0R
///     [A5] S0 = Q K0^T of the next pair               [B4] S1 = Q K1^T of the next pair
///
///     warpgroup 2: [P1] fills the half tiles in the order in which they are given back: K0L, K1R, K0R, K1L
///
/// Shared memory  Q 72 KiB + K 2 x 72 KiB + p1 8 KiB + 2 KiB = 226 KiB of 227 KiB; p0 lies in K0's last column tile, which
///                only [A5] reads.
/// Registers      producer 88, consumers 208: 128 * 504 = 64512 of 64512.
#include "../common/half_tile.cuh"
#include "../common/mla_products.cuh"
#include "../common/register.cuh"
#include "../device/trace.cuh"

namespace dsa::sparse_mla_fwd_05 {

constexpr int kThreads = 384;
constexpr int kHalf = kDimV / 2;                      ///< output columns of a consumer

struct SharedStorage {
  ColumnTile q[kQKTiles];
  KeyTile k[2];                                       ///< at the end, the output
  ColumnTile p1;
  HalfState left[2], right[2];                        ///< of k[0] and k[1]
  uint64_t valid[2];                                  ///< comes with K0L and K1R, the half that is filled first
  ptx::mbarrier q_full;                               ///< 128 arrivals: cp.async of every producer thread
  float m0[kTileHeads], m1[kTileHeads];               ///< running maximum, after the even and after the odd tile
  float l[2][kTileHeads];                             ///< at the end: sums of p, by consumer
  DSA_DEVICE ColumnTile& p0() { return k[0].k[kQKTiles - 1]; }
};
static_assert(sizeof(SharedStorage) <= kMaxSharedMemory);

/// Named barriers between the consumers, 128 threads arrive and 128 wait: the value that it is named after is there.
constexpr unsigned kM0 = 1, kM1 = 2, kP0 = 3, kP1 = 4, kEnd0 = 5, kEnd1 = 6;
constexpr unsigned kBoth = 256;

// ---- Producer ---------------------------------------------------------------------------------------------------------
// [producer]
DSA_DEVICE void produce(SharedStorage& s, const SparseMlaFwdArgs& a, const MlaWork& w, int pairs) {
  ptx::setmaxnreg_dec<88>();
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
// [producer]

// ---- Consumer 0: even tiles, left half of the output -----------------------------------------------------------------
// [left]
DSA_DEVICE void consume_even(SharedStorage& s, const SparseMlaFwdArgs& a, const MlaWork& w, int pairs) {
  ptx::setmaxnreg_inc<208>();
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
// [even_first]
    float m_even[2], factor[2];
    for (int h = 0; h < 2; ++h) {
      m_even[h] = fmaxf(m[h], tile_max(scores, h));
      factor[h] = rescale_factor(m[h], m_even[h], c);
      l[h] = l[h] * factor[h] + exponentiate(scores, h, m_even[h], c);
    }
    put_rows(s.m0, t, m_even);
    ptx::barrier_arrive(kM0, kBoth);
    for (int step = 0; step < 4; ++step) pack_fragment(scores, step, p[step]);

    trace_step("[A2] P0 V0L");
    rescale(out, factor);
    ptx::wgmma_keep(out);
    ptx::wgmma_fence();
    issue_output(out, p, s.k[0].k, pair > 0);
    ptx::wgmma_commit_group();
    ptx::barrier_sync(kM1, kBoth);
    get_rows(s.m1, t, m);
    ptx::wgmma_wait_group<0>();
    ptx::wgmma_keep(out);
    release(s.left[0]);
// [even_first]

// [even_rescale]
    trace_step("[A3] P0 to the maximum of both", 150);
    for (int h = 0; h < 2; ++h) {
      factor[h] = rescale_factor(m_even[h], m[h], c);
      l[h] *= factor[h];
    }
    rescale(scores, factor);
    for (int step = 0; step < 4; ++step) {
      pack_fragment(scores, step, p[step]);
      store_fragment(s.p0(), t, step, p[step]);
    }
    ptx::fence_proxy_async_shared();
    ptx::barrier_arrive(kP0, kBoth);
// [even_rescale]

// [even_queue]
    trace_step("[A4] P1 V1L");
    rescale(out, factor);
    ptx::barrier_sync(kP1, kBoth);                    // after consumer 1 has seen K1, and a fence
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
// [even_queue]
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
// [left]

// ---- Consumer 1: odd tiles, right half of the output -------------------------------------------------------------------
// [right]
DSA_DEVICE void consume_odd(SharedStorage& s, const SparseMlaFwdArgs& a, const MlaWork& w, int pairs) {
  ptx::setmaxnreg_inc<208>();
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
// [odd_maximum]
    float largest[2], m_even[2], factor[2];
    for (int h = 0; h < 2; ++h) largest[h] = tile_max(scores, h);
    ptx::barrier_sync(kM0, kBoth);
    get_rows(s.m0, t, m_even);
    for (int h = 0; h < 2; ++h) {
      const float m_odd = fmaxf(m_even[h], largest[h]);
      factor[h] = rescale_factor(m[h], m_odd, c);
      m[h] = m_odd;
    }
    put_rows(s.m1, t, m);
    ptx::barrier_arrive(kM1, kBoth);
    for (int h = 0; h < 2; ++h) l[h] = l[h] * factor[h] + exponentiate(scores, h, m[h], c);
// [odd_maximum]
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

// [odd_last]
    trace_step("[B3] P0 V0R");
    ptx::barrier_sync(kP0, kBoth);                    // after consumer 0 has seen K0, and a fence
    ptx::wgmma_fence();
    issue_output(out, s.p0(), s.k[0].k + kLeft, true);
    ptx::wgmma_commit_group();
    ptx::wgmma_wait_group<1>();                       // for [B2]
    release(s.right[1]);
    ptx::wgmma_wait_group<0>();
    ptx::wgmma_keep(out);
    release(s.right[0]);
// [odd_last]
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
// [right]

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
    "05_seesaw", "both consumers make scores by turns, each owns half of the output", Accuracy::kBf16,
    Repeatable::kYes};

}  // namespace dsa::sparse_mla_fwd_05

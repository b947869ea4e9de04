/// @file sparse_mla_fwd_06_p0_between.cu
/// Exercise: consumer 1 of rung 6 multiplies P0 V0R between the two halves of its scores, so that K0R is given back earlier.
/// About 14 lines are missing.
///
///     mkdir ~/my_kernels && cp walkthrough/exercises/sparse_mla_fwd_06_p0_between.cu ~/my_kernels/
///     cmake -B build -DDSA_USER_KERNELS=$HOME/my_kernels && cmake --build build
///     build/bin/dsa check --stage sparse_mla_fwd --step ex_p0_between --device emulator
///
/// The chapter (walkthrough/sparse_mla_fwd/06_late_maximum.md) has the solution.
#include "cuda/common/half_tile.cuh"
#include "cuda/common/late_softmax.cuh"
#include "cuda/common/mla_products.cuh"
#include "cuda/common/register.cuh"
#include "cuda/device/trace.cuh"

namespace ex_p0_between {

using namespace dsa;

constexpr int kThreads = 384;
constexpr int kHalf = kDimV / 2;                      ///< output columns of a consumer

struct SharedStorage {
  ColumnTile q[kQKTiles];
  KeyTile k[2];                                       ///< at the end, the output
  ColumnTile p1;
  HalfState left[2], right[2];                        ///< of k[0] and k[1]
  uint64_t valid[2];                                  ///< comes with the left half, which is filled first
  ptx::mbarrier q_full;                               ///< 128 arrivals: cp.async of every producer thread
  Raise raise[2];                                     ///< by the even and by the odd tile
  float m[2][kTileHeads], l[2][kTileHeads], weight[2][kTileHeads];   ///< at the end, by consumer: see LateSoftmax
  DSA_DEVICE ColumnTile& p0() { return k[0].k[kQKTiles - 1]; }
};
static_assert(sizeof(SharedStorage) <= kMaxSharedMemory);

/// Named barriers between the consumers, 128 threads arrive and 128 wait: P of the even or the odd tile is there, with its
/// Raise; a consumer's sums are there, and it reads K no more.
/// kScores0 is among the 128 threads of consumer 0.
constexpr unsigned kP0 = 1, kP1 = 2, kEnd0 = 3, kEnd1 = 4, kScores0 = 5;
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
    fill_half<kRight>(s.right[0], at.parity, s.k[0], kLeft, w, even, t);
    even = look_up_rows(w, 2 * pair + 2, t);
    fill_half<kLeft>(s.left[1], at.parity, s.k[1], 0, w, odd, t);
    publish_valid(s.left[1].full, s.valid[1], w, odd, t);
    fill_half<kRight>(s.right[1], at.parity, s.k[1], kLeft, w, odd, t);
    odd = look_up_rows(w, 2 * pair + 3, t);
  }
}

/// Sums of both consumers, and the end of the rows.
DSA_DEVICE void finish(SharedStorage& s, const SparseMlaFwdArgs& a, const MlaWork& w, const LateSoftmax& softmax, int consumer, int t,
                       float (&out)[128]) {
  float l[2], weight[2], m[2], other_l[2], other_weight[2], other_m[2], factor[2];
  for (int h = 0; h < 2; ++h) l[h] = row_sum(softmax.l[h]), weight[h] = row_sum(softmax.weight[h]), m[h] = row_max(softmax.m[h]);
  put_rows(s.l[consumer], t, l);
  put_rows(s.weight[consumer], t, weight);
  put_rows(s.m[consumer], t, m);
  ptx::barrier_arrive(consumer == 0 ? kEnd0 : kEnd1, kBoth);
  ptx::barrier_sync(consumer == 0 ? kEnd1 : kEnd0, kBoth);
  get_rows(s.l[1 - consumer], t, other_l);
  get_rows(s.weight[1 - consumer], t, other_weight);
  get_rows(s.m[1 - consumer], t, other_m);
  for (int h = 0; h < 2; ++h) {
    const float sum = l[h] + other_l[h];
    const float largest = fmaxf(m[h], other_m[h]);
    factor[h] = store_row_end(a, w, t, h, softmax.reference[h], sum, largest, consumer == 0).factor;
    if (sum > 0) factor[h] *= sum / (weight[h] + other_weight[h]);
  }
  rescale(out, factor);
  store_output(a, w, consumer * kHalf, s.k[0].k + consumer * kLeft, t, out);
}

// ---- Consumer 0: even tiles, left half of the output -----------------------------------------------------------------
DSA_DEVICE void consume_even(SharedStorage& s, const SparseMlaFwdArgs& a, const MlaWork& w, int pairs) {
  ptx::setmaxnreg_inc<216>();
  trace_role("even tiles, left half");
  const int t = threadIdx.x % 128;
  LateSoftmax softmax(a.sm_scale);
  float out[128] = {}, scores[32], factor[2];
  uint32_t p[4][4];

  ptx::mbarrier_wait_parity(&s.q_full, 0);
  auto at = RingPosition<1>::consumer();
  for (int pair = 0; pair < pairs; ++pair, at.advance()) {
    trace_step("[A4] scores");
    wait_full(s.left[0], at.parity);
    const uint64_t valid = s.valid[0];
    ptx::wgmma_fence();
    issue_scores<kLeft>(scores, s.q, s.k[0].k);
    ptx::wgmma_commit_group();
    wait_full(s.right[0], at.parity);
    ptx::wgmma_fence();
    issue_scores<kRight>(scores, s.q + kLeft, s.k[0].k + kLeft, 0, true);
    ptx::wgmma_commit_group();
    ptx::wgmma_wait_group<0>();
    ptx::wgmma_keep(scores);

    trace_step("[A1] softmax", 600);
    if (~valid) mask_scores(scores, valid, t);
    float largest[2];
    softmax.find_largest(scores, largest);
    const bool raised = softmax.exceeds(largest);
    if (raised) {
      softmax.raise(largest, factor);
      if (pair > 0) rescale(out, factor);             // else there is nothing in it
    }
    softmax.exponentiate_rows(scores);
    ptx::barrier_sync(kScores0, 128);                 // the scores of all four warps have read what p0 overwrites
    store_p(s.p0(), t, scores, p);
    softmax.tell(s.raise[0], t, raised, factor);
    ptx::barrier_arrive(kP0, kBoth);

    trace_step("[A2] P0 V0L");
    ptx::wgmma_keep(out);
    ptx::wgmma_fence();
    issue_output(out, p, s.k[0].k, pair > 0);
    ptx::wgmma_commit_group();
    softmax.add(scores);
    ptx::wgmma_wait_group<0>();
    ptx::wgmma_keep(out);
    release(s.left[0]);

    trace_step("[A3] P1 V1L");
    ptx::barrier_sync(kP1, kBoth);                    // after consumer 1 has seen K1, and a fence
    if (s.raise[1].any[t / 32]) {
      softmax.follow(s.raise[1], t, factor);
      rescale(out, factor);
    }
    ptx::wgmma_keep(out);
    ptx::wgmma_fence();
    issue_output(out, s.p1, s.k[1].k, true);
    ptx::wgmma_commit_group();
    ptx::wgmma_wait_group<0>();
    ptx::wgmma_keep(out);
    release(s.left[1]);
  }
  trace_step("[A5] output");
  finish(s, a, w, softmax, 0, t, out);
}

// ---- Consumer 1: odd tiles, right half of the output -------------------------------------------------------------------
DSA_DEVICE void consume_odd(SharedStorage& s, const SparseMlaFwdArgs& a, const MlaWork& w, int pairs) {
  ptx::setmaxnreg_inc<216>();
  trace_role("odd tiles, right half");
  const int t = threadIdx.x % 128;
  LateSoftmax softmax(a.sm_scale);
  float out[128] = {}, scores[32], factor[2];
  uint32_t p[4][4];

  ptx::mbarrier_wait_parity(&s.q_full, 0);
  auto at = RingPosition<1>::consumer();
  for (int pair = 0; pair < pairs; ++pair, at.advance()) {
    trace_step("[B4] scores, left half");
    wait_full(s.left[1], at.parity);
    const uint64_t valid = s.valid[1];
    ptx::wgmma_fence();
    issue_scores<kLeft>(scores, s.q, s.k[1].k);
    ptx::wgmma_commit_group();
    ptx::wgmma_wait_group<0>();
    ptx::wgmma_keep(scores);

    // ---- your code: about 14 lines ------------------------------------------------------------------------------
    // [B1], as a whole. P0 is relative to the even tile's reference; softmax.reference is still the one before.
    // 1. Wait for P0. Why need K0 not be waited for?
    // 2. Follow the even tile's raise, if there is one.
    // 3. O_R += P0 V0R, and give K0R back. The next branch of the program comes after the wait for the products:
    //    around products in flight nvcc serialises them (C7518).
    // ---- end of your code ---------------------------------------------------------------------------------------

    trace_step("[B4] scores, right half");
    wait_full(s.right[1], at.parity);
    ptx::wgmma_fence();
    issue_scores<kRight>(scores, s.q + kLeft, s.k[1].k + kLeft, 0, true);
    ptx::wgmma_commit_group();
    ptx::wgmma_wait_group<0>();
    ptx::wgmma_keep(scores);

    trace_step("[B2] softmax", 600);
    if (~valid) mask_scores(scores, valid, t);
    float largest[2];
    softmax.find_largest(scores, largest);
    const bool raised = softmax.exceeds(largest);
    if (raised) {
      softmax.raise(largest, factor);
      rescale(out, factor);
    }
    softmax.exponentiate_rows(scores);
    store_p(s.p1, t, scores, p);
    softmax.tell(s.raise[1], t, raised, factor);
    ptx::barrier_arrive(kP1, kBoth);

    trace_step("[B3] P1 V1R");
    ptx::wgmma_keep(out);
    ptx::wgmma_fence();
    issue_output(out, p, s.k[1].k + kLeft, true);
    ptx::wgmma_commit_group();
    softmax.add(scores);
    ptx::wgmma_wait_group<0>();
    ptx::wgmma_keep(out);
    release(s.right[1]);
  }
  trace_step("[B5] output");
  finish(s, a, w, softmax, 1, t, out);
}

static __global__ void __launch_bounds__(kThreads, 1) kernel(const SparseMlaFwdArgs a) {
  SharedStorage& s = shared_memory<SharedStorage>();
  const MlaWork w = mla_work(a, blockIdx.x);
  const int pairs = (w.slots + 2 * kTileKeys - 1) / (2 * kTileKeys);
  if (threadIdx.x == 0) {
    ptx::mbarrier_init(&s.q_full, kProducerThreads);
    ptx::mbarrier_init(&s.left[0].full, kFullArrivals);
    ptx::mbarrier_init(&s.left[1].full, kFullArrivals);
    ptx::mbarrier_init(&s.right[0].full, kProducerThreads);
    ptx::mbarrier_init(&s.right[1].full, kProducerThreads);
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
    "ex_p0_between", "exercise: P0 V0R between the halves of the odd scores", Accuracy::kBf16, Repeatable::kYes};

}  // namespace ex_p0_between

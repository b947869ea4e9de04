/// @file 06_late_maximum.cu
/// Sparse MLA forward, rung 6: nobody waits for a maximum. Probabilities are relative to a reference that is only raised when
/// a score exceeds it by far.
///
/// | before        | 05_seesaw.cu: consumer 1 waits for consumer 0's maximum, and P0 is scaled a second time           |
/// |---------------|-----------------------------------------------------------------------------------------------------|
/// | **this rung** | exp(S - r), r an old maximum: right as long as S - r stays below 8 (in powers of two)                |
/// | next          | 07_persistent.cu: no gaps between queries                                                            |
/// | reference     | reference/sparse_mla_fwd.cpp                                                                         |
/// | chapter       | @ref sparse_mla_fwd_06                                                                               |
///
/// Softmax does not change when another number than the maximum is subtracted, as long as nothing overflows: P may then be
/// as large as 2^8, which bf16 and float hold as well as 1. After the first tiles the reference hardly ever changes.
///
///     warpgroup 0: even tiles, left half              warpgroup 1: odd tiles, right half
///     ----------------------------------------------  ---------------------------------------------------
///     [A1] P0 = exp(S0 - r) -> p0                     [B1] O_R += P0 V0R starts
///     [A2] O_L += P0 V0L                   give K0L   [B2] P1 = exp(S1 - r) -> p1             give K0R
///     [A3] O_L += P1 V1L                   give K1L   [B3] O_R += P1 V1R                      give K1R
///     [A4] S0 = Q K0^T of the next pair               [B4] S1 = Q K1^T of the next pair
///
///     A tile that raises r says by how much; everybody multiplies sums and output with it before the tile is added.
///     warpgroup 2: [P1] fills the half tiles in the order in which they are given back: K0L, K0R, K1L, K1R
///
/// Shared memory  Q 72 KiB + K 2 x 72 KiB + p1 8 KiB + 2 KiB = 227 KiB of 227 KiB; p0 lies in K0's last column tile, which
///                only [A4] reads.
/// Registers      producer 72, consumers 216: 128 * 504 = 64512 of 64512.
#include "../common/half_tile.cuh"
#include "../common/late_softmax.cuh"
#include "../common/mla_products.cuh"
#include "../common/register.cuh"
#include "../device/trace.cuh"

namespace dsa::sparse_mla_fwd_06 {

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
// [producer]
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
// [producer]

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
// [left]
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
    // [even_raise]
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
    // [even_raise]

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
// [left]

// ---- Consumer 1: odd tiles, right half of the output -------------------------------------------------------------------
// [right]
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
    trace_step("[B4] scores");
    wait_full(s.left[1], at.parity);
    const uint64_t valid = s.valid[1];
    ptx::wgmma_fence();
    issue_scores<kLeft>(scores, s.q, s.k[1].k);
    ptx::wgmma_commit_group();
    wait_full(s.right[1], at.parity);
    ptx::wgmma_fence();
    issue_scores<kRight>(scores, s.q + kLeft, s.k[1].k + kLeft, 0, true);
    ptx::wgmma_commit_group();
    ptx::wgmma_wait_group<0>();
    ptx::wgmma_keep(scores);

    // [odd_raise]
    trace_step("[B1] P0 V0R");
    ptx::barrier_sync(kP0, kBoth);                    // after consumer 0 has seen K0, and a fence
    if (s.raise[0].any[t / 32]) {
      softmax.follow(s.raise[0], t, factor);
      if (pair > 0) rescale(out, factor);
    }
    ptx::wgmma_keep(out);
    ptx::wgmma_fence();
    issue_output(out, s.p0(), s.k[0].k + kLeft, pair > 0);
    ptx::wgmma_commit_group();

    trace_step("[B2] softmax", 600);
    if (~valid) mask_scores(scores, valid, t);
    float largest[2];
    softmax.find_largest(scores, largest);
    const bool raised = softmax.exceeds(largest);
    if (raised) softmax.raise(largest, factor);       // out must wait: P0 V0R is still being added
    softmax.exponentiate_rows(scores);
    store_p(s.p1, t, scores, p);
    softmax.tell(s.raise[1], t, raised, factor);
    ptx::barrier_arrive(kP1, kBoth);
    // [odd_raise]
    ptx::wgmma_wait_group<0>();
    ptx::wgmma_keep(out);
    release(s.right[0]);

    trace_step("[B3] P1 V1R");
    if (raised) rescale(out, factor);
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
// [right]

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
    "06_late_maximum", "no waiting for maxima: exp relative to a reference that is seldom raised", Accuracy::kBf16,
    Repeatable::kYes};

}  // namespace dsa::sparse_mla_fwd_06

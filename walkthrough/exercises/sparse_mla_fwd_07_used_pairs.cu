/// @file sparse_mla_fwd_07_used_pairs.cu
/// Exercise: the producer of rung 7 leaves out pairs of tiles without a row wherever they are, not only at the end.
/// About 8 lines are missing.
///
///     mkdir ~/my_kernels && cp walkthrough/exercises/sparse_mla_fwd_07_used_pairs.cu ~/my_kernels/
///     cmake -B build -DDSA_USER_KERNELS=$HOME/my_kernels && cmake --build build
///     build/bin/dsa check --stage sparse_mla_fwd --step ex_used_pairs --device emulator
///
/// The chapter (walkthrough/sparse_mla_fwd/07_persistent.md) has the solution.
#include "cuda/common/half_tile.cuh"
#include "cuda/common/late_softmax.cuh"
#include "cuda/common/mla_products.cuh"
#include "cuda/common/register.cuh"
#include "cuda/device/trace.cuh"

namespace ex_used_pairs {

using namespace dsa;

constexpr int kThreads = 384;
constexpr int kHalf = kDimV / 2;                      ///< output columns of a consumer

/// What the consumers must know of an item of work.
struct alignas(16) Item {
  HeadRows heads;
  int pairs;                                          ///< of tiles; 1 if no slot is valid
};

struct SharedStorage {
  ColumnTile q[kQKTiles];
  KeyTile k[2];
  ColumnTile p1;
  HalfState q_left, q_right;                          ///< empty: 8 arrivals, a warp each after its last product with Q
  HalfState left[2], right[2];                        ///< of k[0] and k[1]
  uint64_t valid[2];                                  ///< comes with the left half, which is filled first
  Item item[2];                                       ///< by turns, comes with the left half of Q
  Raise raise[2];                                     ///< by the even and by the odd tile
  float m[kTileHeads], l[kTileHeads];                 ///< of the even tiles, at the end: see LateSoftmax
  float weight[2][kTileHeads];                        ///< at the end, by consumer
  DSA_DEVICE ColumnTile& p0() { return k[0].k[kQKTiles - 1]; }
};
static_assert(sizeof(SharedStorage) <= kMaxSharedMemory);

/// Named barriers between the consumers, 128 threads arrive and 128 wait: P of the even or the odd tile is there, with its
/// Raise; at the end of a query, the sums of consumer 0 or 1 are there.
/// kScores0 is among the 128 threads of consumer 0.
constexpr unsigned kP0 = 1, kP1 = 2, kSums0 = 3, kSums1 = 4, kScores0 = 5;
constexpr unsigned kBoth = 256;

// ---- Producer ---------------------------------------------------------------------------------------------------------
/// A half of Q.
template <int kTiles>
DSA_DEVICE void fill_q(SharedStorage& s, HalfState& half, unsigned parity, int first, const bf16* q, const MlaWork& w, int t) {
  ptx::mbarrier_wait_parity(&half.empty, parity);
  copy_q<kProducerThreads, kTiles>(s.q, q, w, t, first);
  ptx::cp_async_mbarrier_arrive_noinc(&half.full);
}

/// The first pair of tiles from `pair` on that has a row; `pairs` if there is none. Every warp finds it for itself.
DSA_DEVICE int next_used_pair(const MlaWork& w, int pair, int pairs, int lane) {
  // ---- your code: about 8 lines -----------------------------------------------------------------------------------
  // A pair has 2 * kTileKeys = 128 slots, four for each lane. selected_row() says -1 where there is no row.
  (void)w, (void)pair, (void)lane;
  return pairs;
  // ---- end of your code -------------------------------------------------------------------------------------------
}

DSA_DEVICE void produce(SharedStorage& s, const SparseMlaFwdArgs& a, int work_count) {
  ptx::setmaxnreg_dec<88>();
  trace_role("producer");
  const int t = threadIdx.x % 128;
  const auto* q = static_cast<const bf16*>(a.q);
  auto at = RingPosition<1>::producer();              // one buffer of each kind; only the parity matters
  auto q_at = RingPosition<1>::producer();
  for (int n = blockIdx.x; n < work_count; n += gridDim.x, q_at.advance()) {
    const MlaWork w = mla_work(a, n);
    const int lane = t % 32, all = (w.slots + 2 * kTileKeys - 1) / (2 * kTileKeys);
    int used = 0, next = next_used_pair(w, 0, all, lane);
    for (int pair = next; pair < all; pair = next_used_pair(w, pair + 1, all, lane)) ++used;
    const int pairs = max(1, used);                   // without any row: one pair of zeros, which pair `all` is
    ProducerRows even = look_up_rows(w, 2 * next, t), odd = look_up_rows(w, 2 * next + 1, t);
    for (int pair = 0; pair < pairs; ++pair, at.advance()) {
      if (pair == 0) {
        trace_step("[P0] Q");
        fill_q<kLeft>(s, s.q_left, q_at.parity, 0, q, w, t);
        if (t == 0) {
          s.item[q_at.parity] = {w, pairs};
          ptx::mbarrier_arrive(&s.q_left.full);
        }
      }
      trace_step("[P1] gather");
      fill_half<kLeft>(s.left[0], at.parity, s.k[0], 0, w, even, t);
      publish_valid(s.left[0].full, s.valid[0], w, even, t);
      if (pair == 0) fill_q<kRight>(s, s.q_right, q_at.parity, kLeft, q, w, t);
      fill_half<kRight>(s.right[0], at.parity, s.k[0], kLeft, w, even, t);
      next = next_used_pair(w, next + 1, all, lane);
      even = look_up_rows(w, 2 * next, t);
      fill_half<kLeft>(s.left[1], at.parity, s.k[1], 0, w, odd, t);
      publish_valid(s.left[1].full, s.valid[1], w, odd, t);
      fill_half<kRight>(s.right[1], at.parity, s.k[1], kLeft, w, odd, t);
      odd = look_up_rows(w, 2 * next + 1, t);
    }
  }
}

// ---- The end of a query -----------------------------------------------------------------------------------------------
/// Consumer 0 has seen the last raise: its sums are final before the last product is.
DSA_DEVICE void tell_sums_0(SharedStorage& s, int t, const LateSoftmax& softmax) {
  float l[2], weight[2], m[2];
  for (int h = 0; h < 2; ++h) l[h] = row_sum(softmax.l[h]), weight[h] = row_sum(softmax.weight[h]), m[h] = row_max(softmax.m[h]);
  put_rows(s.l, t, l);
  put_rows(s.weight[0], t, weight);
  put_rows(s.m, t, m);
  ptx::barrier_arrive(kSums0, kBoth);
}
/// Consumer 1 has added its last tile.
DSA_DEVICE void tell_sums_1(SharedStorage& s, int t, const LateSoftmax& softmax) {
  const float weight[2] = {row_sum(softmax.weight[0]), row_sum(softmax.weight[1])};
  put_rows(s.weight[1], t, weight);
  ptx::barrier_arrive(kSums1, kBoth);
}

/// lse and max_logits, by consumer 1, which gets all sums.
DSA_DEVICE void store_row_ends(SharedStorage& s, const SparseMlaFwdArgs& a, const HeadRows& w, int t, const LateSoftmax& softmax) {
  float l[2], m[2];
  get_rows(s.l, t, l);
  get_rows(s.m, t, m);
  for (int h = 0; h < 2; ++h)
    store_row_end(a, w, t, h, softmax.reference[h], l[h] + row_sum(softmax.l[h]), fmaxf(m[h], row_max(softmax.m[h])), true);
}

DSA_DEVICE void finish(SharedStorage& s, const SparseMlaFwdArgs& a, const Item& item, const LateSoftmax& softmax, int consumer, int t,
                       float (&out)[128]) {
  float other[2], factor[2];
  ptx::barrier_sync(consumer == 0 ? kSums1 : kSums0, kBoth);
  if (consumer == 1) store_row_ends(s, a, item.heads, t, softmax);
  get_rows(s.weight[1 - consumer], t, other);
  for (int h = 0; h < 2; ++h)
    factor[h] = row_end(a, item.heads, t, h, softmax.reference[h], row_sum(softmax.weight[h]) + other[h]).factor;
  rescale(out, factor);
  store_output_from_registers(a, item.heads, consumer * kHalf, t, out);
}

// ---- Consumer 0: even tiles, left half of the output -----------------------------------------------------------------
/// The tiles of one query; `out` and `softmax` are fresh.
DSA_DEVICE void multiply_even(SharedStorage& s, int pairs, RingPosition<1>& at, unsigned q_parity, int t, LateSoftmax& softmax, float (&out)[128]) {
  float scores[32], factor[2];
  uint32_t p[4][4];
  for (int pair = 0; pair < pairs; ++pair, at.advance()) {
    trace_step("[A4] scores");
    wait_full(s.left[0], at.parity);
    const uint64_t valid = s.valid[0];
    ptx::wgmma_fence();
    issue_scores<kLeft>(scores, s.q, s.k[0].k);
    ptx::wgmma_commit_group();
    wait_full(s.right[0], at.parity);
    if (pair == 0) wait_full(s.q_right, q_parity);
    ptx::wgmma_fence();
    issue_scores<kRight>(scores, s.q + kLeft, s.k[0].k + kLeft, 0, true);
    ptx::wgmma_commit_group();
    ptx::wgmma_wait_group<1>();
    if (pair + 1 == pairs) release(s.q_left);
    ptx::wgmma_wait_group<0>();
    ptx::wgmma_keep(scores);
    if (pair + 1 == pairs) release(s.q_right);

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
    if (pair + 1 == pairs) tell_sums_0(s, t, softmax);
    ptx::wgmma_keep(out);
    ptx::wgmma_fence();
    issue_output(out, s.p1, s.k[1].k, true);
    ptx::wgmma_commit_group();
    ptx::wgmma_wait_group<0>();
    ptx::wgmma_keep(out);
    release(s.left[1]);
  }
}

DSA_DEVICE void consume_even(SharedStorage& s, const SparseMlaFwdArgs& a, int work_count) {
  ptx::setmaxnreg_inc<208>();
  trace_role("even tiles, left half");
  const int t = threadIdx.x % 128;
  auto at = RingPosition<1>::consumer(), q_at = RingPosition<1>::consumer();
  for (int n = blockIdx.x; n < work_count; n += gridDim.x, q_at.advance()) {
    LateSoftmax softmax(a.sm_scale);
    float out[128] = {};
    trace_step("[A4] scores");
    wait_full(s.q_left, q_at.parity);
    const Item& item = s.item[1 - q_at.parity];
    multiply_even(s, item.pairs, at, q_at.parity, t, softmax, out);
    trace_step("[A5] output");
    finish(s, a, item, softmax, 0, t, out);
  }
}

// ---- Consumer 1: odd tiles, right half of the output -------------------------------------------------------------------
DSA_DEVICE void multiply_odd(SharedStorage& s, int pairs, RingPosition<1>& at, unsigned q_parity, int t, LateSoftmax& softmax, float (&out)[128]) {
  float scores[32], factor[2];
  uint32_t p[4][4];
  for (int pair = 0; pair < pairs; ++pair, at.advance()) {
    trace_step("[B4] scores");
    wait_full(s.left[1], at.parity);
    const uint64_t valid = s.valid[1];
    ptx::wgmma_fence();
    issue_scores<kLeft>(scores, s.q, s.k[1].k);
    ptx::wgmma_commit_group();
    wait_full(s.right[1], at.parity);
    if (pair == 0) wait_full(s.q_right, q_parity);
    ptx::wgmma_fence();
    issue_scores<kRight>(scores, s.q + kLeft, s.k[1].k + kLeft, 0, true);
    ptx::wgmma_commit_group();
    ptx::wgmma_wait_group<1>();
    if (pair + 1 == pairs) release(s.q_left);
    ptx::wgmma_wait_group<0>();
    ptx::wgmma_keep(scores);
    if (pair + 1 == pairs) release(s.q_right);

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
    if (pair + 1 == pairs) tell_sums_1(s, t, softmax);
    ptx::wgmma_wait_group<0>();
    ptx::wgmma_keep(out);
    release(s.right[1]);
  }
}

DSA_DEVICE void consume_odd(SharedStorage& s, const SparseMlaFwdArgs& a, int work_count) {
  ptx::setmaxnreg_inc<208>();
  trace_role("odd tiles, right half");
  const int t = threadIdx.x % 128;
  auto at = RingPosition<1>::consumer(), q_at = RingPosition<1>::consumer();
  for (int n = blockIdx.x; n < work_count; n += gridDim.x, q_at.advance()) {
    LateSoftmax softmax(a.sm_scale);
    float out[128] = {};
    trace_step("[B4] scores");
    wait_full(s.q_left, q_at.parity);
    const Item& item = s.item[1 - q_at.parity];
    multiply_odd(s, item.pairs, at, q_at.parity, t, softmax, out);
    trace_step("[B5] output");
    finish(s, a, item, softmax, 1, t, out);
  }
}

static __global__ void __launch_bounds__(kThreads, 1) kernel(const SparseMlaFwdArgs a, const int work_count) {
  SharedStorage& s = shared_memory<SharedStorage>();
  if (threadIdx.x == 0) {
    ptx::mbarrier_init(&s.q_left.full, kProducerThreads + 1);
    ptx::mbarrier_init(&s.q_right.full, kProducerThreads);
    ptx::mbarrier_init(&s.q_left.empty, 8);
    ptx::mbarrier_init(&s.q_right.empty, 8);
    for (int i = 0; i < 2; ++i) {
      ptx::mbarrier_init(&s.left[i].full, kFullArrivals);
      ptx::mbarrier_init(&s.right[i].full, kProducerThreads);
      ptx::mbarrier_init(&s.left[i].empty, 4);
      ptx::mbarrier_init(&s.right[i].empty, 4);
    }
    ptx::fence_mbarrier_init();
  }
  __syncthreads();
  const int warpgroup = __shfl_sync(0xffffffffu, int(threadIdx.x) / 128, 0);   // uniform, and the compiler knows
  if (warpgroup == 2) produce(s, a, work_count);
  else if (warpgroup == 0) consume_even(s, a, work_count);
  else consume_odd(s, a, work_count);
}

static const char* unsupported(const SparseMlaFwdArgs& a) { return tensor_core_unsupported(a); }

static cudaError_t launch(const SparseMlaFwdArgs& a, cudaStream_t stream) {
  const int work_count = int(mla_work_count(a));
  if (work_count == 0) return cudaSuccess;
  const int ctas = min(work_count, sm_count());
  return dsa::launch(kernel, {dim3(unsigned(ctas)), dim3(kThreads), sizeof(SharedStorage), stream}, a, work_count);
}

static const Register<SparseMlaFwdArgs, unsupported, launch> registered{
    "ex_used_pairs", "exercise: pairs of tiles without a row are left out", Accuracy::kBf16, Repeatable::kYes};

}  // namespace ex_used_pairs

/// @file 07_persistent.cu
/// Sparse MLA forward, rung 7: a CTA per SM that stays, whose producer is already with the next query, and whose products
/// queue behind each other.
///
/// | before        | 06_late_maximum.cu: every query starts with an empty ring; a product starts when the one before is done    |
/// |---------------|--------------------------------------------------------------------------------------------------------------|
/// | **this rung** | the ring runs on into the next query; products queue; the output leaves from registers, under new scores    |
/// | next          |                                                                                                              |
/// | reference     | reference/sparse_mla_fwd.cpp                                                                                 |
/// | chapter       | @ref sparse_mla_fwd_07                                                                                       |
///
///     warpgroup 0: even tiles, left half              warpgroup 1: odd tiles, right half
///     ----------------------------------------------  ---------------------------------------------------
///     [A1] P0 = exp(S0 - r) -> p0                     [B1] O_R += P0 V0R, queued behind [B4]
///     [A2] O_L += P0 V0L                   give K0L   [B2] P1 = exp(S1 - r) -> p1             give K0R
///     [A3] O_L += P1 V1L                   give K1L   [B3] O_R += P1 V1R                      give K1R
///     [A4] S0 = Q K0^T of the next pair,              [B4] S1 = Q K1^T of the next pair
///          the left part queued behind [A3]
///          after the last of a query       give Q          after the last of a query          give Q
///     the last [A3]: sums; the next query's [A4]      the last [B3]: sums, lse, max_logits
///     [A5] output, under that [A4]                    [B5] output
///
///     warpgroup 2: [P0] halves of Q, as soon as both have given them, between [P1] K0L, K0R, K1L, K1R
///
/// Shared memory  Q 72 KiB + K 2 x 72 KiB + p1 8 KiB + 2 KiB = 227 KiB of 227 KiB; p0 lies in K0's last column tile, which
///                only [A4] reads.
/// Registers      producer 88, consumers 208: 128 * 504 = 64512 of 64512.
#include "../common/half_tile.cuh"
#include "../common/late_softmax.cuh"
#include "../common/mla_products.cuh"
#include "../common/register.cuh"
#include "../device/trace.cuh"

namespace dsa::sparse_mla_fwd_07 {

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
/// kScores0 and kAgree0 are among the 128 threads of consumer 0.
constexpr unsigned kP0 = 1, kP1 = 2, kSums0 = 3, kSums1 = 4, kScores0 = 5, kAgree0 = 6;
constexpr unsigned kBoth = 256;

// ---- Producer ---------------------------------------------------------------------------------------------------------
/// A half of Q.
template <int kTiles>
DSA_DEVICE void fill_q(SharedStorage& s, HalfState& half, unsigned parity, int first, const bf16* q, const MlaWork& w, int t) {
  ptx::mbarrier_wait_parity(&half.empty, parity);
  copy_q<kProducerThreads, kTiles>(s.q, q, w, t, first);
  ptx::cp_async_mbarrier_arrive_noinc(&half.full);
}

// [used_slots]
/// The slots up to the last one that has a row: behind it are only tiles of zeros. Selections of fewer rows than topk end in
/// such slots, so the list is read from its end, 512 slots at a time, by every warp for itself.
DSA_DEVICE int used_slots(const MlaWork& w, int lane) {
  constexpr int kLoads = 16;                          // in flight per thread
  for (int end = w.slots; end > 0; end -= 32 * kLoads) {
    int index[kLoads];
    unsigned used = 0;
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const int slot = end - 1 - 32 * i - lane;
      index[i] = slot >= 0 ? selected_index(w, slot) : -1;
    }
#pragma unroll
    for (int i = 0; i < kLoads; ++i)
      if (is_visible(w, index[i])) used = max(used, unsigned(end - 32 * i - lane));
    used = __reduce_max_sync(0xffffffffu, used);
    if (used > 0) return int(used);
  }
  return 0;
}
// [used_slots]

// [producer]
DSA_DEVICE void produce(SharedStorage& s, const SparseMlaFwdArgs& a, int work_count) {
  ptx::setmaxnreg_dec<88>();
  trace_role("producer");
  const int t = threadIdx.x % 128;
  const auto* q = static_cast<const bf16*>(a.q);
  auto at = RingPosition<1>::producer();              // one buffer of each kind; only the parity matters
  auto q_at = RingPosition<1>::producer();
  // [next_query]
  for (int n = blockIdx.x; n < work_count; n += gridDim.x, q_at.advance()) {
    const MlaWork w = mla_work(a, n);
    ProducerRows even = look_up_rows(w, 0, t), odd = look_up_rows(w, 1, t);
    const int pairs = max(1, (used_slots(w, t % 32) + 2 * kTileKeys - 1) / (2 * kTileKeys));
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
  // [next_query]
      even = look_up_rows(w, 2 * pair + 2, t);
      fill_half<kLeft>(s.left[1], at.parity, s.k[1], 0, w, odd, t);
      publish_valid(s.left[1].full, s.valid[1], w, odd, t);
      fill_half<kRight>(s.right[1], at.parity, s.k[1], kLeft, w, odd, t);
      odd = look_up_rows(w, 2 * pair + 3, t);
    }
  }
}
// [producer]

// ---- The end of a query -----------------------------------------------------------------------------------------------
// [sums]
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
// [sums]

/// lse and max_logits, by consumer 1, which gets all sums.
DSA_DEVICE void store_row_ends(SharedStorage& s, const SparseMlaFwdArgs& a, const HeadRows& w, int t, const LateSoftmax& softmax) {
  float l[2], m[2];
  get_rows(s.l, t, l);
  get_rows(s.m, t, m);
  for (int h = 0; h < 2; ++h)
    store_row_end(a, w, t, h, softmax.reference[h], l[h] + row_sum(softmax.l[h]), fmaxf(m[h], row_max(softmax.m[h])), true);
}

/// What the output must be multiplied with, made while the last product runs. Waits for the sums of the other consumer.
DSA_DEVICE void end_rows(SharedStorage& s, const SparseMlaFwdArgs& a, const HeadRows& w, const LateSoftmax& softmax, int consumer, int t,
                         float (&factor)[2]) {
  float other[2];
  ptx::barrier_sync(consumer == 0 ? kSums1 : kSums0, kBoth);
  if (consumer == 1) store_row_ends(s, a, w, t, softmax);
  get_rows(s.weight[1 - consumer], t, other);
  for (int h = 0; h < 2; ++h) factor[h] = row_end(a, w, t, h, softmax.reference[h], row_sum(softmax.weight[h]) + other[h]).factor;
}

DSA_DEVICE void finish(const SparseMlaFwdArgs& a, const HeadRows& w, int consumer, int t, const float (&factor)[2], float (&out)[128]) {
  rescale(out, factor);
  store_output_from_registers(a, w, consumer * kHalf, t, out);
}

// ---- Consumer 0: even tiles, left half of the output -----------------------------------------------------------------
// [left]
/// [A1], [A2]: from the scores of K0 to what the output has of it. @param first  there is nothing in the output yet
DSA_DEVICE void multiply_even(SharedStorage& s, uint64_t valid, bool first, int t, LateSoftmax& softmax, float (&scores)[32], float (&out)[128]) {
  float largest[2], factor[2];
  uint32_t p[4][4];
  trace_step("[A1] softmax", 600);
  if (~valid) mask_scores(scores, valid, t);
  softmax.find_largest(scores, largest);
  const bool raised = softmax.exceeds(largest);
  if (raised) {
    softmax.raise(largest, factor);
    if (!first) rescale(out, factor);
  }
  softmax.exponentiate_rows(scores);
  ptx::barrier_sync(kScores0, 128);                   // the scores of all four warps have read what p0 overwrites
  store_p(s.p0(), t, scores, p);
  softmax.tell(s.raise[0], t, raised, factor);
  ptx::barrier_arrive(kP0, kBoth);

  trace_step("[A2] P0 V0L");
  ptx::wgmma_keep(out);
  ptx::wgmma_fence();
  issue_output(out, p, s.k[0].k, !first);
  ptx::wgmma_commit_group();
  softmax.add(scores);
  ptx::wgmma_wait_group<0>();
  ptx::wgmma_keep(out);
  release(s.left[0]);
}

/// [A3]: P1 V1L, once the odd tile's raise is known. Starts it.
DSA_DEVICE void follow_odd(SharedStorage& s, int t, LateSoftmax& softmax, float (&out)[128]) {
  trace_step("[A3] P1 V1L");
  ptx::barrier_sync(kP1, kBoth);                      // after consumer 1 has seen K1, and a fence
  if (s.raise[1].any[t / 32]) {
    float factor[2];
    softmax.follow(s.raise[1], t, factor);
    rescale(out, factor);
  }
}
DSA_DEVICE void start_odd_product(SharedStorage& s, float (&out)[128]) {
  ptx::wgmma_keep(out);
  ptx::wgmma_fence();
  issue_output(out, s.p1, s.k[1].k, true);
  ptx::wgmma_commit_group();
}
DSA_DEVICE void end_odd_product(SharedStorage& s, float (&out)[128]) {
  ptx::wgmma_wait_group<0>();
  ptx::wgmma_keep(out);
  release(s.left[1]);
}

/// [A4]: the scores of the next K0 queue up behind P1 V1L, if its keys are there. If not, K1L is given back first: who has to
/// wait does not keep others waiting. @return which of the keys are valid
// [queue]
DSA_DEVICE uint64_t queue_scores(SharedStorage& s, const RingPosition<1>& at, float (&scores)[32], float (&out)[128]) {
  trace_step("[A4] scores");
  const bool there = ptx::barrier_all(kAgree0, 128, ptx::mbarrier_test_wait_parity(&s.left[0].full, at.parity));
  if (!there) end_odd_product(s, out);
  wait_full(s.left[0], at.parity);
  const uint64_t valid = s.valid[0];
  ptx::wgmma_keep(scores);
  ptx::wgmma_fence();
  issue_scores<kLeft>(scores, s.q, s.k[0].k);
  ptx::wgmma_commit_group();
  ptx::wgmma_wait_group<1>();
  ptx::wgmma_keep(out);
  if (there) release(s.left[1]);
  wait_full(s.right[0], at.parity);
  ptx::wgmma_fence();
  issue_scores<kRight>(scores, s.q + kLeft, s.k[0].k + kLeft, 0, true);
  ptx::wgmma_commit_group();
  ptx::wgmma_wait_group<0>();
  ptx::wgmma_keep(scores);
  return valid;
}
// [queue]

/// [A4] of the first K0 of a query, when it and Q are there. Starts the products.
DSA_DEVICE uint64_t start_first_scores(SharedStorage& s, const RingPosition<1>& at, const RingPosition<1>& q_at, float (&scores)[32]) {
  trace_step("[A4] scores");
  wait_full(s.q_left, q_at.parity);
  wait_full(s.left[0], at.parity);
  const uint64_t valid = s.valid[0];
  wait_full(s.right[0], at.parity);
  wait_full(s.q_right, q_at.parity);
  ptx::wgmma_keep(scores);
  ptx::wgmma_fence();
  issue_scores<kQKTiles>(scores, s.q, s.k[0].k);
  ptx::wgmma_commit_group();
  return valid;
}

DSA_DEVICE void consume_even(SharedStorage& s, const SparseMlaFwdArgs& a, int work_count) {
  ptx::setmaxnreg_inc<208>();
  trace_role("even tiles, left half");
  const int t = threadIdx.x % 128;
  float out[128] = {}, scores[32] = {}, end[2];
  // [queries]
  auto at = RingPosition<1>::consumer(), q_at = RingPosition<1>::consumer();
  uint64_t valid = start_first_scores(s, at, q_at, scores);
  ptx::wgmma_wait_group<0>();
  ptx::wgmma_keep(scores);
  for (int n = blockIdx.x + gridDim.x;; n += gridDim.x) {   // n: the next item
    LateSoftmax softmax(a.sm_scale);
    const Item& item = s.item[1 - q_at.parity];
    for (int pair = 0; pair + 1 < item.pairs; ++pair) {
      multiply_even(s, valid, pair == 0, t, softmax, scores, out);
      at.advance();
      follow_odd(s, t, softmax, out);
      start_odd_product(s, out);
      valid = queue_scores(s, at, scores, out);
    }
    release(s.q_left);
    release(s.q_right);
    multiply_even(s, valid, item.pairs == 1, t, softmax, scores, out);
    at.advance(), q_at.advance();
    follow_odd(s, t, softmax, out);
    tell_sums_0(s, t, softmax);
    start_odd_product(s, out);
    end_rows(s, a, item.heads, softmax, 0, t, end);
    end_odd_product(s, out);
    if (n >= work_count) return finish(a, item.heads, 0, t, end, out);
    valid = start_first_scores(s, at, q_at, scores);
    trace_step("[A5] output");
    finish(a, item.heads, 0, t, end, out);            // while the next query's first scores are made
    ptx::wgmma_wait_group<0>();
    ptx::wgmma_keep(scores);
  }
  // [queries]
}
// [left]

// ---- Consumer 1: odd tiles, right half of the output -------------------------------------------------------------------
// [right]
/// The tiles of one query; `softmax` is fresh.
DSA_DEVICE void multiply_odd(SharedStorage& s, const SparseMlaFwdArgs& a, const Item& item, RingPosition<1>& at, unsigned q_parity, int t,
                             float (&out)[128], float (&end)[2]) {
  float scores[32], largest[2], factor[2];
  uint32_t p[4][4];
  LateSoftmax softmax(a.sm_scale);
  for (int pair = 0; pair < item.pairs; ++pair, at.advance()) {
    const bool last = pair + 1 == item.pairs;
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

    // [odd_raise]
    trace_step("[B1] P0 V0R");
    ptx::barrier_sync(kP0, kBoth);                    // after consumer 0 has seen K0, and a fence
    if (s.raise[0].of_some_warp()) {                  // the warpgroup waits as one
      ptx::wgmma_wait_group<0>();                     // seldom; without it, ptxas has it waited for always
      ptx::wgmma_keep(scores);
      if (s.raise[0].any[t / 32]) {
        softmax.follow(s.raise[0], t, factor);
        if (pair > 0) rescale(out, factor);
      }
    }
    ptx::wgmma_keep(out);
    ptx::wgmma_fence();
    issue_output(out, s.p0(), s.k[0].k + kLeft, pair > 0);   // queues up behind the scores
    ptx::wgmma_commit_group();
    ptx::wgmma_wait_group<1>();
    ptx::wgmma_keep(scores);
    if (last) {
      release(s.q_left);
      release(s.q_right);
    }

    trace_step("[B2] softmax", 600);
    if (~valid) mask_scores(scores, valid, t);
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
    if (last) {
      tell_sums_1(s, t, softmax);
      end_rows(s, a, item.heads, softmax, 1, t, end);
    }
    ptx::wgmma_wait_group<0>();
    ptx::wgmma_keep(out);
    release(s.right[1]);
  }
}
// [right]

DSA_DEVICE void consume_odd(SharedStorage& s, const SparseMlaFwdArgs& a, int work_count) {
  ptx::setmaxnreg_inc<208>();
  trace_role("odd tiles, right half");
  const int t = threadIdx.x % 128;
  float out[128] = {}, end[2];
  auto at = RingPosition<1>::consumer(), q_at = RingPosition<1>::consumer();
  for (int n = blockIdx.x; n < work_count; n += gridDim.x, q_at.advance()) {
    trace_step("[B4] scores");
    wait_full(s.q_left, q_at.parity);
    const Item& item = s.item[1 - q_at.parity];
    multiply_odd(s, a, item, at, q_at.parity, t, out, end);
    trace_step("[B5] output");
    finish(a, item.heads, 1, t, end, out);            // while consumer 0 makes the next query's first scores
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
    "07_persistent", "a CTA per SM; the ring runs on from query to query", Accuracy::kBf16, Repeatable::kYes};

}  // namespace dsa::sparse_mla_fwd_07

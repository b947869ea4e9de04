/// @file topk_01_parallel_walk.cu
/// Exercise: 256 threads instead of one walk the histogram. About 12 lines are missing.
///
///     mkdir ~/my_kernels && cp walkthrough/exercises/topk_01_parallel_walk.cu ~/my_kernels/
///     cmake -B build -DDSA_USER_KERNELS=$HOME/my_kernels && cmake --build build
///     build/bin/dsa check --stage topk --step ex_parallel_walk --device emulator
///
/// The chapter (walkthrough/topk/01_naive.md) has the solution.
#include "cuda/common/block_rank.cuh"
#include "cuda/common/register.cuh"
#include "cuda/common/sortable_key.cuh"

namespace ex_parallel_walk {

using namespace dsa;

constexpr int kThreads = 256;
constexpr int kDigitBits = 8;
constexpr int kBins = 1 << kDigitBits;

struct SharedStorage {
  int histogram[kBins];
  int warp_total[kThreads / 32];
  uint32_t prefix;     // as in 01_naive: the digits found so far ...
  int wanted;          // ... and how many keys with this prefix are still to be selected
};

struct Window {
  int first, last;
};
DSA_DEVICE Window window_of(const TopkArgs& a, int row) {
  return {min(max(a.ks[row], 0), a.n), min(max(a.ke[row], 0), a.n)};
}

/// Chooses the bin in which the wanted-th largest key lies: extends s.prefix by its digit and takes the keys of all
/// higher bins off s.wanted. If the histogram holds fewer than s.wanted keys,
/// s.prefix becomes kNeverSelected and s.wanted 0.
/// All threads call it after the histogram is complete; what they see of s.prefix and s.wanted when it returns
/// must be the new values.
DSA_DEVICE void choose_bin(SharedStorage& s, int shift) {
  // ---- your code: about 12 lines ------------------------------------------------------------------------------
  // Thread t owns bin t. Let above(t) = the sum of all bins higher than t. The bin is the one with
  //     above(t) < wanted <= above(t) + histogram[t],
  // so at most one thread finds itself in charge. For above: eight steps of doubling distance, or plainly 256 reads;
  // even the plain way lets all bins be judged at the same time. Mind who still reads what you are about to write.
  (void)shift;
  if (threadIdx.x == 0) s.prefix = ~0u;          // larger than every key: selects nothing
  __syncthreads();
  // ---- end of your code ---------------------------------------------------------------------------------------
}

/// [T1] The k-th largest key in s.prefix, and in s.wanted how many of the keys equal to it belong to the k largest.
/// With fewer than k selectable keys: prefix kNeverSelected, so that every one of them is larger, and wanted 0.
DSA_DEVICE void find_threshold(SharedStorage& s, const float* logits, Window window, int k) {
  const int t = threadIdx.x;
  if (t == 0) {
    s.prefix = 0;
    s.wanted = k;
  }
  for (int shift = 32 - kDigitBits; shift >= 0; shift -= kDigitBits) {
    s.histogram[t] = 0;                          // kThreads == kBins
    __syncthreads();
    const uint32_t prefix = s.prefix;
    // Digits above this round's; in the first round there are none, and a shift by 32 is not defined.
    const uint32_t decided = shift + kDigitBits == 32 ? 0u : ~0u << (shift + kDigitBits);
    for (int column = window.first + t; column < window.last; column += kThreads) {
      const uint32_t key = sortable_key(logits[column]);
      if (key != kNeverSelected && (key & decided) == prefix) atomicAdd(&s.histogram[key >> shift & (kBins - 1)], 1);
    }
    __syncthreads();
    choose_bin(s, shift);
    if (s.wanted == 0) return;                   // fewer than k keys: only the first round can end here
  }
}

static __global__ void __launch_bounds__(kThreads) kernel(const TopkArgs a) {
  SharedStorage& s = shared_memory<SharedStorage>();
  const int t = threadIdx.x;
  const int row = blockIdx.x;
  const float* logits = a.logits + row * a.logits_stride;
  int32_t* indices = a.indices + int64_t(row) * a.topk;
  const Window window = window_of(a, row);

  find_threshold(s, logits, window, a.topk);
  const uint32_t threshold = s.prefix;
  const int wanted_ties = s.wanted;

  // [T2] 256 columns at a time; block_rank keeps column order.
  int written = 0, ties = 0;
  for (int tile = window.first; tile < window.last; tile += kThreads) {
    const int column = tile + t;
    const uint32_t key = column < window.last ? sortable_key(logits[column]) : kNeverSelected;
    const bool tie = key == threshold;
    const Rank tie_rank = block_rank(tie, s.warp_total);
    const bool take = key > threshold || (tie && ties + tie_rank.before < wanted_ties);
    const Rank rank = block_rank(take, s.warp_total);
    // The second condition is not in 01_naive: it keeps an unfinished choose_bin inside the row.
    if (take && written + rank.before < a.topk) indices[written + rank.before] = column;
    written += rank.total;
    ties += tie_rank.total;
  }
  for (int j = written + t; j < a.topk; j += kThreads) indices[j] = kInvalid;
}

static const char* unsupported(const TopkArgs& a) {
  if (a.n > 0x7fffffff - 2 * kThreads) return "n must be below 2^31 - 512 (columns are counted in 32 bits)";
  return nullptr;
}

static cudaError_t launch(const TopkArgs& a, cudaStream_t stream) {
  if (a.rows == 0) return cudaSuccess;
  return dsa::launch(kernel, {dim3(unsigned(a.rows)), dim3(kThreads), sizeof(SharedStorage), stream}, a);
}

static const Register<TopkArgs, unsupported, launch> registered{
    "ex_parallel_walk", "exercise: all threads walk the histogram", Accuracy::kExact, Repeatable::kYes};

}  // namespace ex_parallel_walk

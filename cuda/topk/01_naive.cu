/// @file 01_naive.cu
/// Top-k selector, rung 1: radix select that reads the row again for every digit. Exact for any data.
///
/// | before        | reference/topk.cpp: partial sort                                    |
/// |---------------|---------------------------------------------------------------------|
/// | **this rung** | find the k-th largest key, 8 bits at a time; then write what is above it |
/// | next          | 02: two-stage selection                                             |
/// | chapter       | @ref topk_01                                                        |
///
/// One CTA per row:
///
///     [T1] four times, from the highest digit down: histogram the digit of all keys that agree with the prefix
///          found so far; walk the bins from the top until the k-th largest lies inside one; that bin's digit
///          extends the prefix. After four rounds the prefix is the k-th largest key itself.
///     [T2] write, in column order, every column whose key is larger, and the first columns whose key is equal
///          until k are written. -1 for the rest.
///
/// Nothing is buffered, so no population of any bin can overflow anything; the price is five reads of the row.
/// Writing in column order makes the default and the deterministic mode the same thing here.
///
/// Shared memory  histogram 1024 B, warp totals 32 B, the search's state 8 B: 1064 B.
#include "../common/block_rank.cuh"
#include "../common/register.cuh"
#include "../common/sortable_key.cuh"

namespace dsa::topk_01 {

constexpr int kThreads = 256;
constexpr int kDigitBits = 8;
constexpr int kBins = 1 << kDigitBits;

struct SharedStorage {
  int histogram[kBins];
  int warp_total[kThreads / 32];
  uint32_t prefix;     ///< the digits of the k-th largest key found so far, lower digits zero
  int wanted;          ///< how many keys with this prefix are still to be selected
};

/// The window [first, last) of a row: ks and ke clamped to the row.
struct Window {
  int first, last;
};
DSA_DEVICE Window window_of(const TopkArgs& a, int row) {
  return {min(max(a.ks[row], 0), a.n), min(max(a.ke[row], 0), a.n)};
}

/// [T1] The k-th largest key in s.prefix, and in s.wanted how many of the keys equal to it belong to the k largest.
/// With fewer than k selectable keys: prefix kNeverSelected, so that every one of them is larger, and wanted 0.
DSA_DEVICE void find_threshold(SharedStorage& s, const float* logits, Window window, int k) {
  const int t = threadIdx.x;
  if (t == 0) {
    s.prefix = 0;
    s.wanted = k;
  }
  // [histogram]
  for (int shift = 32 - kDigitBits; shift >= 0; shift -= kDigitBits) {
    s.histogram[t] = 0;                          // kThreads == kBins
    __syncthreads();
    const uint32_t prefix = s.prefix;
    // Digits above this round's; in the first round there are none, and a shift by 32 is not defined.
    const uint32_t decided = shift + kDigitBits == 32 ? 0u : ~0u << (shift + kDigitBits);
    for (int column = window.first + t; column < window.last; column += kThreads) {
      const uint32_t key = sortable_key(logits[column]);
      if (key != kNeverSelected && (key & decided) == prefix) atomicAdd(&s.histogram[key >> shift & (kBins - 1)], 1);
  // [histogram]
    }
    // [walk]
    __syncthreads();
    if (t == 0) {
      int bin = kBins - 1;
      while (bin >= 0 && s.histogram[bin] < s.wanted) s.wanted -= s.histogram[bin--];
      s.prefix = bin < 0 ? kNeverSelected : prefix | uint32_t(bin) << shift;
      if (bin < 0) s.wanted = 0;
    }
    __syncthreads();
    if (s.wanted == 0) return;                   // fewer than k keys: only the first round can end here
    // [walk]
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

  // [write]
  // [T2] 256 columns at a time; block_rank keeps column order.
  int written = 0, ties = 0;
  for (int tile = window.first; tile < window.last; tile += kThreads) {
    const int column = tile + t;
    const uint32_t key = column < window.last ? sortable_key(logits[column]) : kNeverSelected;
    const bool tie = key == threshold;
    const Rank tie_rank = block_rank(tie, s.warp_total);
    const bool take = key > threshold || (tie && ties + tie_rank.before < wanted_ties);
    const Rank rank = block_rank(take, s.warp_total);
    if (take) indices[written + rank.before] = column;
    written += rank.total;
    ties += tie_rank.total;
  }
  for (int j = written + t; j < a.topk; j += kThreads) indices[j] = kInvalid;
  // [write]
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
    "01_naive", "one CTA per row, radix select, five reads of the row", Accuracy::kExact, Repeatable::kYes};

}  // namespace dsa::topk_01

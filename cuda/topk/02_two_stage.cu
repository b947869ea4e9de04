/// @file 02_two_stage.cu
/// Top-k selector, rung 2: one coarse digit of the whole row, then only the bin at the threshold.
///
/// | before        | 01_naive.cu: every digit reads the row again, five reads                                       |
/// |---------------|------------------------------------------------------------------------------------------------|
/// | **this rung** | two reads: a histogram of one coarse digit; a filter that stages the threshold's bin in smem    |
/// | next          | 03_wide_digit.cu: a wider digit, wider loads, fewer atomics                                     |
/// | reference     | reference/topk.cpp                                                                              |
/// | chapter       | @ref topk_02                                                                                    |
///
/// One CTA per row:
///
///     [T1] histogram of the highest 8 bits of the 16-bit coarse key                          first read
///     [T2] the bin in which the k-th largest lies
///     [T3] a column above that bin is written at once; one inside the bin becomes a candidate   second read
///     [T4] the exact threshold among the candidates: radix select over their fp32 keys
///     [T5] write the candidates that it selects; -1 for the rest
///
/// A bin can hold more candidates than the buffer, all of the row even: values in [1, 1.25) are one bin. Published kernels
/// of this shape clip there, or write past the buffer. The histogram says beforehand how many there will be, so here such
/// a bin is not staged: [T4] and [T5] read the row instead, at their price.
///
/// Default mode: slots are handed out by an atomic, in no particular order. Deterministic mode: nothing is written in [T3],
/// and in place of [T5] the row is read once more to write in column order.
///
/// Shared memory  candidates 32 KiB, two histograms 2 KiB: 34 KiB. 3 CTAs per SM, by registers.
#include "../common/register.cuh"
#include "../common/topk_coarse_key.cuh"
#include "../common/topk_row.cuh"
#include "../device/trace.cuh"

namespace dsa::topk_02 {

constexpr int kThreads = 512;
constexpr int kDigitBits = 8;
constexpr int kBins = 1 << kDigitBits;
constexpr int kCapacity = 4096;                  ///< candidates; normal logits leave about 1000 of 32768 in the bin

struct SharedStorage : SlotStorage {
  int histogram[kBins];
  uint2 candidate[kCapacity];                    ///< key, column
};
static_assert(sizeof(SharedStorage) <= kMaxSharedMemory);

DSA_DEVICE int digit_of(float x) { return int(coarse_key(x) >> (kCoarseBits - kDigitBits)); }

/// [T1]
// [histogram]
DSA_DEVICE void make_histogram(SharedStorage& s, const TopkRow& row) {
  const int t = threadIdx.x;
  if (t < kBins) s.histogram[t] = 0;
  if (t == 0) s.written = s.staged = s.ties = 0;
  __syncthreads();
  for (int column = row.first + t; column < row.last; column += kThreads) {
    atomicAdd(&s.histogram[digit_of(row.logits[column])], 1);   // bin 0: NaN and -inf
  }
  __syncthreads();
}
// [histogram]

/// [T3] Ends without a barrier; radix_select begins with one.
// [filter]
DSA_DEVICE void filter(SharedStorage& s, const TopkRow& row, int bin, bool write, bool stage) {
  for (int column = row.first + int(threadIdx.x); column < row.last; column += kThreads) {
    const float x = row.logits[column];
    const int digit = digit_of(x);
    if (digit > bin && write) row.indices[atomicAdd(&s.written, 1)] = column;
    if (digit == bin && stage) s.candidate[atomicAdd(&s.staged, 1)] = make_uint2(sortable_key(x), uint32_t(column));
  }
}
// [filter]

static __global__ void __launch_bounds__(kThreads, 3) kernel(const TopkArgs a) {
  SharedStorage& s = shared_memory<SharedStorage>();
  const TopkRow row = topk_row(a, blockIdx.x);

  trace_step("[T1] histogram");
  Bin bin{-1, 0, 0};                             // a window of at most k columns needs no threshold
  if (row.last - row.first > row.k) {
    make_histogram(s, row);
    trace_step("[T2] bin");
    bin = find_bin<kThreads, kBins, 1>(s.histogram, row.k, s.select.search, ThisCta{});
  }
  if (bin.bin < 0) {                             // fewer than k selectable columns: all of them
    write_in_order<kThreads>(row, {kNeverSelected, 0, false}, s.select.search.warp_total);
    return;
  }

  trace_step("[T3] filter");
  const int wanted = row.k - bin.above;
  const bool stage = bin.population <= kCapacity;
  filter(s, row, bin.bin, !a.deterministic, stage);
  // [overflow]
  if (stage) {
    select<kThreads>(s, row, wanted, a.deterministic, [&](const auto& f) {
      for (int i = threadIdx.x; i < bin.population; i += kThreads) f(s.candidate[i].x, int(s.candidate[i].y));
    });
  } else {
    select<kThreads>(s, row, wanted, a.deterministic, [&](const auto& f) {
      for (int column = row.first + int(threadIdx.x); column < row.last; column += kThreads) {
        const float x = row.logits[column];
        if (digit_of(x) == bin.bin) f(sortable_key(x), column);
      }
    });
  }
  // [overflow]
}

static const char* unsupported(const TopkArgs& a) { return topk_row_unsupported(a); }

static cudaError_t launch(const TopkArgs& a, cudaStream_t stream) {
  if (a.rows == 0 || a.topk == 0) return cudaSuccess;
  return dsa::launch(kernel, {dim3(unsigned(a.rows)), dim3(kThreads), sizeof(SharedStorage), stream}, a);
}

static const Register<TopkArgs, unsupported, launch> registered{
    "02_two_stage", "coarse histogram, then the threshold's bin in smem", Accuracy::kExact, Repeatable::kNo};

}  // namespace dsa::topk_02

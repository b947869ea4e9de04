/// @file 03_wide_digit.cu
/// Top-k selector, rung 3: the same two reads at the memory's speed.
///
/// | before        | 02_two_stage.cu: 8-bit digit, 4-byte loads, an atomic for every selected column                  |
/// |---------------|------------------------------------------------------------------------------------------------|
/// | **this rung** | 11-bit digit; four 16-byte loads in flight per thread; two float comparisons instead of keys in   |
/// |               | the filter; slots handed out once per warp and 512 columns                                      |
/// | next          | 04_resident_keys.cu: 16-bit keys stay in smem, so the row is read once                           |
/// | reference     | reference/topk.cpp                                                                              |
/// | chapter       | @ref topk_03                                                                                    |
///
/// One CTA per row; rows begin anywhere, so loads start at the 16-byte boundary before the window:
///
///     [T1] histogram of the highest 11 bits of the coarse key: atomics without a result            first read
///     [T2] the bin in which the k-th largest lies, and its bounds as floats: lower <= x < upper
///     [T3] x >= upper is written, lower <= x < upper becomes a candidate                            second read
///     [T4] fetch the candidates' keys; the exact threshold among them: radix select
///     [T5] write the candidates that it selects; -1 for the rest
///
/// 11 bits leave 100 to 1300 candidates where 8 leave 1000 to 18000 (indexer-like rows of 8 K to 128 K), but nothing is
/// assumed: a bin larger than the buffer is not staged, and [T4] and [T5] read the row instead.
///
/// Default mode: in no particular order. Deterministic mode: [T3] only stages, and in place of [T5] the row is read once
/// more to write in column order.
///
/// Shared memory  histogram 8 KiB, candidates 32 KiB, radix histogram 1 KiB: 41 KiB. 2 CTAs per SM, by registers.
/// In flight      2 CTAs x 512 threads x 64 B = 64 KiB per SM; 4 TB/s need about 32.
#include "../common/register.cuh"
#include "../common/topk_coarse_key.cuh"
#include "../common/topk_row.cuh"
#include "../device/trace.cuh"

namespace dsa::topk_03 {

constexpr int kThreads = 512;
constexpr int kDigitBits = 11;
constexpr int kBins = 1 << kDigitBits;
constexpr int kShift = kCoarseBits - kDigitBits;
constexpr int kLoads = 4;                        ///< 16-byte loads in flight per thread
constexpr int kTile = 4 * kLoads * kThreads;     ///< columns that the CTA has in registers at a time
constexpr int kCapacity = 4096;                  ///< candidates

struct SharedStorage : SlotStorage {
  int histogram[kBins];                          ///< bin 0: what is never selected
  int column[kCapacity];                         ///< of the candidates
  uint32_t key[kCapacity];
};
static_assert(sizeof(SharedStorage) <= kMaxSharedMemory);

/// The bin at the threshold as an interval: a logit is inside iff lower <= x and not x >= upper.
struct Bounds { float lower, upper; };

DSA_DEVICE Bounds bounds_of(int bin) {
  return {coarse_bound(uint32_t(bin) << kShift), coarse_bound(uint32_t(bin + 1) << kShift)};
}

/// f(column, x) for this thread's part of each tile: its quad `i` is x[i], from column(i) on. All loads of a tile are issued
/// before the first is used.
// [tiles]
template <class F> DSA_DEVICE void for_each_tile(const TopkRow& row, const F& f) {
  for (int tile = row.aligned; tile < row.last; tile += kTile) {
    const auto column = [&](int load) { return tile + 4 * (load * kThreads + int(threadIdx.x)); };
    float4 quad[kLoads];
    load_quads(row, column(0), 4 * kThreads, quad);
    float x[4 * kLoads];
    for (int i = 0; i < kLoads; ++i)
      x[4 * i] = quad[i].x, x[4 * i + 1] = quad[i].y, x[4 * i + 2] = quad[i].z, x[4 * i + 3] = quad[i].w;
    f(column, x);
  }
}
// [tiles]

/// [T1]
// [histogram]
DSA_DEVICE void make_histogram(SharedStorage& s, const TopkRow& row) {
  const int t = threadIdx.x;
  for (int bin = t; bin < kBins; bin += kThreads) s.histogram[bin] = 0;
  if (t == 0) s.written = s.staged = s.ties = 0;
  __syncthreads();
  for_each_tile(row, [&](const auto&, const float (&x)[4 * kLoads]) {
    for (int i = 0; i < 4 * kLoads; ++i) atomicAdd(&s.histogram[coarse_key(x[i]) >> kShift], 1);
  });
  __syncthreads();
}
// [histogram]

/// [T3] A thread notes its hits in two bit masks; the warp adds them up and takes slots for all of them at once.
// [filter]
DSA_DEVICE void filter(SharedStorage& s, const TopkRow& row, const Bounds& bounds, bool write, bool stage) {
  const int lane = threadIdx.x % 32;
  for_each_tile(row, [&](const auto& column, const float (&x)[4 * kLoads]) {
    uint32_t above = 0, inside = 0;
    for (int i = 0; i < 4 * kLoads; ++i) {
      above |= uint32_t(x[i] >= bounds.upper) << i;
      inside |= uint32_t(x[i] >= bounds.lower) << i;
    }
    inside = stage ? inside & ~above : 0;
    if (!write) above = 0;

    const uint32_t counts = uint32_t(__popc(above)) | uint32_t(__popc(inside)) << 16;
    const uint32_t inclusive = warp_inclusive_scan(counts);
    int slot = 0, place = 0;                     // of the warp's first column above, and of its first candidate
    if (lane == 31) {
      if (inclusive & 0xffff) slot = atomicAdd(&s.written, int(inclusive & 0xffff));
      if (inclusive >> 16) place = atomicAdd(&s.staged, int(inclusive >> 16));
    }
    slot = __shfl_sync(0xffffffffu, slot, 31) + int((inclusive - counts) & 0xffff);
    place = __shfl_sync(0xffffffffu, place, 31) + int((inclusive - counts) >> 16);
    const auto column_of = [&](uint32_t hits) { return column((__ffs(int(hits)) - 1) / 4) + (__ffs(int(hits)) - 1) % 4; };
    for (; above; above &= above - 1) row.indices[slot++] = column_of(above);
    for (; inside; inside &= inside - 1) s.column[place++] = column_of(inside);
  });
  __syncthreads();
}
// [filter]

static __global__ void __launch_bounds__(kThreads, 2) kernel(const TopkArgs a) {
  SharedStorage& s = shared_memory<SharedStorage>();
  const int t = threadIdx.x;
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
  const Bounds bounds = bounds_of(bin.bin);
  const int wanted = row.k - bin.above;
  const bool stage = bin.population <= kCapacity;
  filter(s, row, bounds, !a.deterministic, stage);
  if (stage) {
    for (int i = t; i < bin.population; i += kThreads) s.key[i] = sortable_key(row.logits[s.column[i]]);
    // radix_select begins with a barrier
    select<kThreads>(s, row, wanted, a.deterministic, [&](const auto& f) {
      for (int i = t; i < bin.population; i += kThreads) f(s.key[i], s.column[i]);
    });
  } else {
    select<kThreads>(s, row, wanted, a.deterministic, [&](const auto& f) {
      for_each_tile(row, [&](const auto& column, const float (&x)[4 * kLoads]) {
        for (int i = 0; i < 4 * kLoads; ++i)
          if (x[i] >= bounds.lower && !(x[i] >= bounds.upper)) f(sortable_key(x[i]), column(i / 4) + i % 4);
      });
    });
  }
}

static const char* unsupported(const TopkArgs& a) { return topk_row_unsupported(a); }

static cudaError_t launch(const TopkArgs& a, cudaStream_t stream) {
  if (a.rows == 0 || a.topk == 0) return cudaSuccess;
  return dsa::launch(kernel, {dim3(unsigned(a.rows)), dim3(kThreads), sizeof(SharedStorage), stream}, a);
}

static const Register<TopkArgs, unsupported, launch> registered{
    "03_wide_digit", "11-bit digit, 16-byte loads, slots once per warp", Accuracy::kExact, Repeatable::kNo};

}  // namespace dsa::topk_03

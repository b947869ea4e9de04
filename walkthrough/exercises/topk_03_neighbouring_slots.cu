/// @file topk_03_neighbouring_slots.cu
/// Exercise: neighbouring lanes write neighbouring slots of the result. About 10 lines are missing.
///
///     mkdir ~/my_kernels && cp walkthrough/exercises/topk_03_neighbouring_slots.cu ~/my_kernels/
///     cmake -B build -DDSA_USER_KERNELS=$HOME/my_kernels && cmake --build build
///     build/bin/dsa check --stage topk --step ex_neighbouring_slots --device emulator
///
/// The chapter (walkthrough/topk/03_wide_digit.md) has the solution.
#include "cuda/common/register.cuh"
#include "cuda/common/topk_coarse_key.cuh"
#include "cuda/common/topk_row.cuh"
#include "cuda/device/trace.cuh"

namespace ex_neighbouring_slots {

using namespace dsa;

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

/// [T1]
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

/// Writes the columns of the bits in `above` into slots of row.indices, in any order. Bit i of a lane is its i-th column of
/// the tile, column(i / 4) + i % 4. All lanes of a warp call it.
///
/// What shall be true of it: the warp takes its slots with one atomicAdd to s.written; each store of the warp goes to slots
/// that follow each other. __ballot_sync says which lanes have bit i; __popc counts.
template <class Column>
DSA_DEVICE void write_above(SharedStorage& s, const TopkRow& row, uint32_t above, const Column& column) {
  const int lane = threadIdx.x % 32;
  // ---- your code: about 10 lines ------------------------------------------------------------------------------
  (void)lane, (void)s, (void)row, (void)above, (void)column;
  // ---- end of your code ---------------------------------------------------------------------------------------
}

/// [T3] A thread notes its hits in two bit masks; the warp takes slots for all of them at once.
DSA_DEVICE void filter(SharedStorage& s, const TopkRow& row, const Bounds& bounds, bool write, bool stage) {
  const int lane = threadIdx.x % 32;
  for_each_tile(row, [&](const auto& column, const float (&x)[4 * kLoads]) {
    uint32_t above = 0, inside = 0;
    for (int i = 0; i < 4 * kLoads; ++i) {
      above |= uint32_t(x[i] >= bounds.upper) << i;
      inside |= uint32_t(x[i] >= bounds.lower) << i;
    }
    inside = stage ? inside & ~above : 0;
    if (write) write_above(s, row, above, column);

    const uint32_t count = uint32_t(__popc(inside)), inclusive = warp_inclusive_scan(count);
    int place = 0;                               // of the warp's first candidate
    if (lane == 31 && inclusive > 0) place = atomicAdd(&s.staged, int(inclusive));
    place = __shfl_sync(0xffffffffu, place, 31) + int(inclusive - count);
    for (; inside; inside &= inside - 1) {
      const int i = __ffs(int(inside)) - 1;
      s.column[place++] = column(i / 4) + i % 4;
    }
  });
  __syncthreads();
}

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
    "ex_neighbouring_slots", "exercise: neighbouring lanes write neighbouring slots", Accuracy::kExact, Repeatable::kNo};

}  // namespace ex_neighbouring_slots

/// @file topk_06_warp_keep.cu
/// Exercise: a list that is full keeps its k largest, with one atomic per warp and turn. About 10 lines are missing.
///
///     mkdir ~/my_kernels && cp walkthrough/exercises/topk_06_warp_keep.cu ~/my_kernels/
///     cmake -B build -DDSA_USER_KERNELS=$HOME/my_kernels && cmake --build build
///     build/bin/dsa check --stage topk --step ex_warp_keep --device emulator
///
/// The chapter (walkthrough/topk/06_early_bound.md) has the solution.
#include "cuda/common/register.cuh"
#include "cuda/common/topk_resident.cuh"
#include "cuda/common/topk_sample.hpp"
#include "cuda/device/trace.cuh"

namespace ex_warp_keep {

using namespace dsa;

constexpr int kQuads = 8;                        ///< of a lane, of one tile
constexpr int kTile = 4 * kQuads * 32;           ///< columns that a warp looks at together
constexpr int kStages = 2;                       ///< tiles of a warp in flight
constexpr uint32_t kLowest = 0x00800000;         ///< key of the lowest finite float

struct alignas(16) SharedStorage : ResidentStorage {   ///< the list follows, then the tiles
  BinSearch search;
  int count;                                     ///< places of the list that were asked for
  int end;                                       ///< the first place that was not given, because not all of them fitted
  uint32_t largest;                              ///< key in the list
};

/// The columns that are kept so far, as member_order().
struct List {
  uint64_t* entry;
  int capacity;                                  ///< at least k + kTile, so that a list that is full has more than k entries
};

// ---- [T1] A bound -----------------------------------------------------------------------------------------------------
/// A bound: an entry; all entries from it on are to be kept.
template <int kThreads> DSA_DEVICE uint64_t sample_bound(SharedStorage& s, const TopkRow& row) {
  constexpr int kLoads = 2 * kSampleParts / kThreads;
  const int t = threadIdx.x, pairs = (row.last - row.aligned) / 8;
  float4 x[kLoads];
  for (int i = 0; i < kLoads; ++i) {
    // Two neighbouring lanes, one sector of 32 bytes: some pair of quads of the stratum.
    const uint32_t stratum = uint32_t(i * kThreads + t) / 2;
    const uint32_t pair = sampled_group(stratum, uint32_t(pairs));
    x[i] = load_quad(row, row.aligned + 8 * int(pair) + 4 * (t % 2));
  }
  clear_histogram<kThreads>(s);
  __syncthreads();
  for (int i = 0; i < kLoads; ++i) {
    for (const uint32_t pair : {half_keys(x[i].x, x[i].y), half_keys(x[i].z, x[i].w)}) {
      atomicAdd(&s.histogram[pair >> kLowBits & (kTopkBins - 1)], 1);
      atomicAdd(&s.histogram[pair >> (16 + kLowBits)], 1);
    }
  }
  __syncthreads();
  sum_blocks<kThreads>(s);
  __syncthreads();
  // The rank of the row's k-th in the sample, and 4.5 standard deviations.
  const float rank = float(row.k) * kSampleParts / float(pairs);
  const Bin bin = find_high(s, int(rank + 4.5f * sqrtf(rank)) + 4, ThisCta{});
  uint32_t key = kLowest;
  if (bin.bin >= 0) {
    const uint32_t first = uint32_t(bin.bin) << kLowBits;
    // What rounds to the smallest half of the bin may lie below it, but not below the half before.
    key = first == 0 ? 0x8001 : first < 0x8000 ? first - 1 : first + (1 << kLowBits);
    key = key > kHalfLowest ? kLowest : sortable_key(float_of_half(key));
  }
  return member_order(key, 0x7fffffff);
}

// ---- [T2] The list ------------------------------------------------------------------------------------------------------
/// Brings this lane's quads of a tile to smem, as one group of cp.async. `own` is where the first goes. Only this lane reads
/// them.
DSA_DEVICE void fetch(const TopkRow& row, int tile, float4* own) {
  const int first = row.aligned + tile * kTile, column = first + 4 * int(threadIdx.x % 32);
  if (first >= row.first && first + kTile <= row.last) {
    for (int i = 0; i < kQuads; ++i) ptx::cp_async_16(&own[32 * i], row.logits + column + 128 * i);
  } else if (first < row.last) {
    for (int i = 0; i < kQuads; ++i) own[32 * i] = load_quad(row, column + 128 * i);
  }
  ptx::cp_async_commit_group();
}

/// Puts the columns from `bound` on into the list, of this warp's tiles from `tile` on, until the list is full.
/// @param own   this lane's first quad in the ring of its warp, to which kStages tiles are on their way
/// @return      the first tile that is not in the list
template <int kThreads>
DSA_DEVICE int collect(SharedStorage& s, const TopkRow& row, const List& list, float4* own, int tile, uint64_t bound) {
  constexpr int kWarps = kThreads / 32;
  static_assert(4 * kQuads <= 32 && (kStages & (kStages - 1)) == 0);
  const int lane = threadIdx.x % 32, tiles = (row.last - row.aligned + kTile - 1) / kTile;
  const uint32_t key = uint32_t(bound >> 32);
  // A tile that lies behind the bound's column needs to be larger.
  const float below = float_below_key(key), at = float_of_key(key);
  const int bound_column = column_of(bound);
  uint32_t largest = 0;
  for (; tile < tiles; tile += kWarps) {
    ptx::cp_async_wait_group<kStages - 1>();
    float4* stage = own + unsigned(tile) / kWarps % kStages * (32 * kQuads);
    const int column = row.aligned + tile * kTile;
    const float less = column > bound_column ? at : below;
    uint32_t hits = 0;                           // bit 4 i + j: component j of quad i
    for (int i = kQuads - 1; i >= 0; --i) {
      const float4 x = stage[32 * i];
      hits = push_above(push_above(push_above(push_above(hits, x.w, less), x.z, less), x.y, less), x.x, less);
    }
    const int mine = __popc(hits), inclusive = int(warp_inclusive_scan(uint32_t(mine)));
    const int total = __shfl_sync(0xffffffffu, inclusive, 31);
    if (total > 0) {
      int base = 0;
      if (lane == 31) base = atomicAdd(&s.count, total);
      base = __shfl_sync(0xffffffffu, base, 31);
      if (base + total > list.capacity) {        // from now on so it is for everybody
        if (lane == 31) atomicMin(&s.end, base);
        break;
      }
      const float* value = reinterpret_cast<const float*>(stage);
      const uint32_t from_end = ~uint32_t(column + 4 * lane);
      uint2* place = reinterpret_cast<uint2*>(list.entry + base + inclusive - mine);
      while (hits) {
        const int bit = 31 - __clz(int(hits)), offset = bit + (bit & ~3) * 31;   // the same in smem and in the row
        hits ^= 1u << bit;
        const uint32_t bits = __float_as_uint(value[offset] + 0.0f);
        const uint32_t key = bits ^ (uint32_t(int(bits) >> 31) | 0x80000000u);   // sortable_key, of what it selects
        largest = max(largest, key);
        *place++ = make_uint2(from_end - uint32_t(offset), key);                  // member_order
      }
    }
    fetch(row, tile + kStages * kWarps, stage);
  }
  largest = __reduce_max_sync(0xffffffffu, largest);
  if (lane == 0) atomicMax(&s.largest, largest);
  return tile;
}

// ---- [T3] The k-th entry --------------------------------------------------------------------------------------------------
/// The k-th largest of `count` entries, more than k; none is below the key of `bound`. All threads; begins and ends with a
/// barrier.
template <int kThreads>
DSA_DEVICE uint64_t kth_entry(SharedStorage& s, const List& list, int count, int k, uint64_t bound) {
  const int t = threadIdx.x;
  uint64_t low = bound >> 32 << 32, high = uint64_t(s.largest) << 32 | 0xffffffffu;   // it lies between these
  Bin bin;
  do {
    if (t == 0) s.members = 0;
    clear_histogram<kThreads>(s);
    __syncthreads();
    const uint64_t range = high - low;
    const int bits = range >> 32 ? 64 - __clz(uint32_t(range >> 32)) : 32 - __clz(uint32_t(range));
    const int shift = max(bits - (16 - kLowBits), 0);
    for (int i = t; i < count; i += kThreads) {
      const uint64_t away = list.entry[i] - low;
      if (away <= range) atomicAdd(&s.histogram[away >> shift], 1);
    }
    __syncthreads();
    bin = find_bin<kThreads, kTopkBins>(s.histogram, k, s.search, ThisCta{});
    k -= bin.above;
    low += uint64_t(bin.bin) << shift;
    high = min(high, low + ((uint64_t(1) << shift) - 1));
  } while (bin.population > kMembers);
  for (int i = t; i < count; i += kThreads) {
    const uint64_t mine = list.entry[i];
    if (mine >= low && mine <= high) s.member[atomicAdd(&s.members, 1)] = mine;
  }
  __syncthreads();
  for (int i = t; i < bin.population; i += kThreads)
    if (rank_among(s.member, bin.population, s.member[i]) == k - 1) s.pivot = s.member[i];
  __syncthreads();
  return s.pivot;
}

/// Only the entries from `bound` on stay. All threads; begins after a barrier and ends with one.
///
/// What shall be true of it: of the `count` entries of the list those that are at least `bound` stand in its first places, in
/// any order; s.count says how many, and s.end that nothing is missing. The list is written while it is read: no entry may
/// be lost before its thread has it in a register. One atomicAdd per warp and turn; __ballot_sync says which lanes have an
/// entry that stays, __popc counts them.
template <int kThreads> DSA_DEVICE void keep(SharedStorage& s, const List& list, int count, uint64_t bound) {
  // ---- your code: about 10 lines ------------------------------------------------------------------------------
  // As it stands, the first places of the list stay, whatever they hold.
  (void)bound;
  if (threadIdx.x == 0) s.count = min(count, list.capacity - kTile), s.end = 0x7fffffff;
  __syncthreads();
  // ---- end of your code ---------------------------------------------------------------------------------------
}

// ---- [T4] Writing -----------------------------------------------------------------------------------------------------------
/// Writes the columns of the entries from `bound` on, by rising column. All threads.
/// @param bits  [words] columns at a time, 32 in each
template <int kThreads>
DSA_DEVICE void write_entries(SharedStorage& s, const TopkRow& row, const List& list, int count, uint64_t bound,
                              uint32_t* bits, int words) {
  const int t = threadIdx.x;
  int written = 0;
  for (int first = row.aligned; first < row.last; first += 32 * words) {   // once, up to 524288 columns
    const int used = min((row.last - first + 31) / 32, words);
    for (int i = t; i < used; i += kThreads) bits[i] = 0;
    __syncthreads();
    for (int i = t; i < count; i += kThreads) {
      const uint64_t mine = list.entry[i];
      const unsigned position = unsigned(column_of(mine) - first);
      if (mine >= bound && position < 32u * unsigned(used)) atomicOr(&bits[position / 32], 1u << position % 32);
    }
    __syncthreads();
    // In whole sectors by way of the list, which nobody needs any more, unless there is more to come.
    const bool staged = first == row.aligned && used < words;
    int32_t* out = staged ? reinterpret_cast<int32_t*>(list.entry) : row.indices + written;
    int total = 0;
    for (int piece = 0; piece < used; piece += kThreads) {
      const uint32_t word = piece + t < used ? bits[piece + t] : 0;
      const Scan scan = block_scan<kThreads>(uint32_t(__popc(word)), s.search.warp_total);
      int32_t* place = out + total + int(scan.before);
      for (uint32_t left = word; left; left &= left - 1)
        *place++ = first + 32 * (piece + t) + __ffs(int(left)) - 1;
      total += int(scan.total);
    }
    __syncthreads();
    if (staged)
      for (int i = t; i < total; i += kThreads) row.indices[i] = out[i];
    written += total;
  }
  fill_rest<kThreads>(row, written);
}

template <int kThreads, int kCtas>
static __global__ void __launch_bounds__(kThreads, kCtas) kernel(const TopkArgs a, int capacity, int ahead) {
  constexpr int kWarps = kThreads / 32, kRing = kWarps * kStages * 32 * kQuads;
  SharedStorage& s = shared_memory<SharedStorage>();
  const TopkRow row = topk_row(a, blockIdx.x);
  const RowAhead next = row_ahead(a, int64_t(blockIdx.x) + ahead);
  const List list{reinterpret_cast<uint64_t*>(&s + 1), capacity};
  float4* ring = reinterpret_cast<float4*>(list.entry + capacity);
  const int t = threadIdx.x, warp = t / 32;
  float4* own = ring + warp * (kStages * 32 * kQuads) + t % 32;
  const uint64_t lowest = member_order(kLowest, 0x7fffffff);

  trace_step("[T1] sample");
  const auto begin = [&] {
    if (t == 0) s.count = 0, s.end = 0x7fffffff, s.largest = 0;
    for (int stage = 0; stage < kStages; ++stage) fetch(row, warp + stage * kWarps, own + stage * (32 * kQuads));
  };
  begin();
  uint64_t bound = lowest;
  if (row.last - row.aligned > capacity) bound = sample_bound<kThreads>(s, row);
  __syncthreads();

  trace_step("[T2] collect");
  int tile = warp, count = 0;
  while (true) {
    tile = collect<kThreads>(s, row, list, own, tile, bound);
    __syncthreads();
    count = min(s.count, s.end);
    if (s.end < 0x7fffffff) {                    // full: more than k entries
      bound = kth_entry<kThreads>(s, list, count, row.k, bound);
      keep<kThreads>(s, list, count, bound);
    } else if (count < row.k && bound != lowest) {   // the bound was too high
      __syncthreads();                           // all have read s.count
      begin();
      tile = warp, bound = lowest;
      __syncthreads();
    } else {
      break;
    }
  }
  if (t == 0) prefetch(next);

  trace_step("[T3] threshold");
  bound = count > row.k ? kth_entry<kThreads>(s, list, count, row.k, bound) : 0;
  trace_step("[T4] write");
  write_entries<kThreads>(s, row, list, count, bound, reinterpret_cast<uint32_t*>(ring), 4 * kRing);
}

/// For short rows.
static const RungEntry* rung_4() { return find_rung(Stage::kTopk, kThisDevice, "04_resident_keys"); }

static const char* unsupported(const TopkArgs& a) {
  return rung_4() ? topk_row_unsupported(a) : "needs the step 04_resident_keys of topk";
}

static cudaError_t launch(const TopkArgs& a, cudaStream_t stream) {
  if (a.rows == 0 || a.topk == 0) return cudaSuccess;
  const int sms = sm_count();
  // Spare places: 2476 on a large chip; few on the emulator, so that lists fill up there too.
  const int64_t capacity = (int64_t(a.topk) + kTile + 11 * sms + 1) / 2 * 2;
  const auto bytes = [&](int threads) {
    return sizeof(SharedStorage) + std::size_t(capacity) * sizeof(uint64_t) +
           std::size_t(threads / 32 * kStages * kTile) * sizeof(float);
  };
  if (a.n < 8 * int64_t(a.topk) || bytes(256) > kMaxSharedMemory) return cudaError_t(rung_4()->launch(a, stream));
  const auto with = [&](auto* kernel, int threads, int ctas) {
    const LaunchConfig config{dim3(unsigned(a.rows)), dim3(unsigned(threads)), bytes(threads), stream};
    return dsa::launch(kernel, config, a, int(capacity), ctas * sms);
  };
  // A CTA that is alone on its SM takes all the threads.
  if (a.rows <= sms && bytes(512) <= kMaxSharedMemory) return with(kernel<512, 1>, 512, 1);
  return with(kernel<256, 2>, 256, 2);
}

static const Register<TopkArgs, unsupported, launch> registered{
    "ex_warp_keep", "exercise: a full list keeps its k largest, a warp at a time", Accuracy::kExact, Repeatable::kYes};

}  // namespace ex_warp_keep

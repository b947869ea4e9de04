/// @file 06_early_bound.cu
/// Top-k selector, rung 6: most columns are compared once and forgotten.
///
/// | before        | 05_clusters.cu: every column becomes a key, is counted by an atomic and scanned twice             |
/// |---------------|------------------------------------------------------------------------------------------------|
/// | **this rung** | a sample gives a lower bound first; only what reaches it is kept, a tenth of a long row           |
/// | next          | none: the last rung of this stage                                                               |
/// | reference     | reference/topk.cpp                                                                              |
/// | chapter       | @ref topk_06                                                                                    |
///
/// One CTA of 256 threads per row, three CTAs per SM. A tile has 4096 columns in pieces of 128, spread evenly over the row
/// (cuda/common/topk_tiles.hpp), 16 columns per thread; two tiles are always on their way:
///
///     [T1] the first tile, of a long row the first two: histogram of its columns' high bits. The bound is the bin of the rank that
///          the row's k-th should have among them, and 4.5 standard deviations more
///     [T2] all tiles: columns from the bound on go to a list in smem. Each thread has a column of the list for itself, so that a
///          place costs no atomic, no scan and no bank conflict
///     [T3] a fine histogram of the list above the bound: the bin of the k-th largest
///     [T4] one scan of the list: what is above the bin becomes a bit per column; those in the bin are ranked by (value, column), all
///          against all, and the first of them get their bits, too. The bits are written out by rising column
///
/// The sample decides how long the list gets, never what is selected:
///
/// | the list              | what happens                                                                     | when                    |
/// |-----------------------|----------------------------------------------------------------------------------|-------------------------|
/// | a thread's is full    | radix select on all of it; only the k largest stay, dealt out evenly; the smallest of them is the new bound; [T2] goes on | many ties, alike neighbours |
/// | and it has at most k  | all of it stays, dealt out evenly; [T2] goes on                                      | few threads have all of it |
/// | ends up short         | [T2] once more, without a bound: it fills up, and the bound rises as above          | the sample misleads     |
///
/// Of independent columns at most one row in 300000 ends up short. A thread's list fills up in one of 2000 rows of 32768 columns,
/// in 1.4 % of those of 131072, in most of a million. Where pieces are not like the rest of the row, the second read may become
/// ordinary, and such a row takes twice the time or more.
///
/// Entries differ by their columns, so nothing is ever tied: after equal values filled the list its bound is a column, and
/// columns behind that need to be larger.
///
/// Rows of fewer than 12 k columns are left to rung 4, which is faster there. Rows that are fewer than SMs
/// have a CTA of 512 threads each, and rung 5 is the better one.
///
/// Shared memory  8.2 KiB, and a list of k / 256 + 25 rows of 2 KiB: 74.2 KiB for k = 2048.
/// Registers      80 per thread, 32 of them for columns.
/// Expected       17500 instructions per row of 32768 (it became 21500), and no more bytes than the row has. In us, for the cases
///                in rung 4's order: 140 | 63 | 39 | 140 | 12.5 | 22.
#include <cfloat>
#include <climits>

#include "../common/register.cuh"
#include "../common/topk_half_key.cuh"
#include "../common/topk_row.cuh"
#include "../common/topk_tiles.hpp"
#include "../device/trace.cuh"

namespace dsa::topk_06 {

constexpr int kBins = 1024;                      ///< of a histogram
constexpr int kHalfShift = 6;                    ///< low bits of a half that the sample's histogram does not look at
constexpr int kFineShift = 14;                   ///< and low bits of a float's key: the bins above a bound span two binades
constexpr int kFinestShift = 4;                  ///< the same for the bins of a bin
constexpr uint32_t kInfinity = 0xff800000;       ///< its key
constexpr int kCrowd = 128;                      ///< a bin above this size gets bins of its own
constexpr int kMembers = 512;                    ///< a bin up to this size is ranked by comparing all with all
constexpr int kWindow = 32768;                   ///< columns that are written at a time
constexpr int kMargin = 21;                      ///< a thread's list has room for so many entries more than its share of k
constexpr int kSpare = 4;                        ///< places behind a thread's list, which looks for its end after so many columns

/// What is kept: larger values, and this one up to this column.
struct Bound {
  float value;
  int column;
};
constexpr Bound kLowest{-FLT_MAX, INT_MAX};      ///< keeps all that is selectable

struct alignas(16) SharedStorage {               ///< the list follows
  union {
    int histogram[kBins];                        ///< larger keys have higher bins
    uint64_t member[kMembers];                   ///< later, of one bin, as member_order()
    RadixSelect select;                          ///< or this, for a bin that is too large
  };
  uint32_t bits[kWindow / 32];                   ///< one for each column of a window: whether it is selected
  BinSearch search;
  RowAhead ahead;
  int entries;                                   ///< in the list
  int members;
};

/// The columns that are kept so far. Thread t has entries t, t + kThreads, ..., as many as its `mine`.
struct List {
  uint2* entry;                                  ///< bits of the logit, column
  int rows;                                      ///< a thread has fewer entries than this; kSpare more places for what does not fit
};

DSA_DEVICE bool keeps(const Bound& bound, float value, int column) {
  return (value > bound.value) | ((value == bound.value) & (column <= bound.column));   // no branches
}

/// f(value, column) for each entry of this thread. Two are on their way at once.
template <int kThreads, class F> DSA_DEVICE void for_each_entry(const List& list, int mine, const F& f) {
  const uint2* entry = list.entry + threadIdx.x;
  int i = 0;
#pragma unroll 1                                 // lanes of different lengths would take turns at the rest
  for (; i + 1 < mine; i += 2) {
    const uint2 one = entry[i * kThreads], two = entry[(i + 1) * kThreads];
    f(__uint_as_float(one.x), int(one.y)), f(__uint_as_float(two.x), int(two.y));
  }
  if (i < mine) f(__uint_as_float(entry[i * kThreads].x), int(entry[i * kThreads].y));
}

// ---- Tiles ------------------------------------------------------------------------------------------------------------
/// The quads that this thread has of a tile. Warps take turns at the slots, so that none has a part of the row for itself.
// [load]
template <int kThreads> struct Tiles {
  static constexpr int kWarps = kThreads / 32;
  TopkRow row;
  int count;

  DSA_DEVICE int column(int tile) const {        ///< of the first quad; the others are stride() further on each
    const int slot = int((threadIdx.x / 32 + unsigned(tile)) % kWarps);
    return row.aligned + kPiece * (slot * count + tile) + 4 * int(threadIdx.x % 32);
  }
  DSA_DEVICE int stride() const { return kPiece * kWarps * count; }
};

struct Quads {
  float4 x[kTileQuads];
  int column;
};
template <int kThreads> DSA_DEVICE void load(Quads& q, const Tiles<kThreads>& tiles, int tile) {
  if (tile >= tiles.count) return;
  q.column = tiles.column(tile);
  load_quads(tiles.row, q.column, tiles.stride(), q.x);
}
// [load]

// ---- [T1] A bound -----------------------------------------------------------------------------------------------------
/// From the first tile, or of a long row the first two. All threads; nobody uses the union before or after.
// [sample]
template <int kThreads>
DSA_DEVICE Bound sample_bound(SharedStorage& s, const Tiles<kThreads>& tiles, const Quads& first, const Quads& second) {
  clear_words<kThreads>(s.histogram);
  __syncthreads();
  const int sampled = sample_tiles(tiles.count);
  const auto for_each_half = [&](const auto& f) {
    for (int tile = 0; tile < sampled; ++tile) {
      for (int i = 0; i < kTileQuads; ++i) {
        const float4 x = tile == 0 ? first.x[i] : second.x[i];
        for (const uint32_t pair : {ordered_halves(half_keys(x.x, x.y)), ordered_halves(half_keys(x.z, x.w))})
          f(pair & 0xffff), f(pair >> 16);
      }
    }
  };
  for_each_half([&](uint32_t half) { atomicAdd(&s.histogram[half >> kHalfShift], 1); });
  __syncthreads();
  // The rank of the row's k-th in the sample, and 4.5 standard deviations; behind NaN, which has the highest bin. The lowest
  // bins have -inf.
  constexpr int kLowestBin = 0x400 >> kHalfShift;
  const float rank = float(sampled) * float(tiles.row.k) / float(tiles.count);
  const int sample_k = int(rank + 4.5f * sqrtf(rank)) + 4 + s.histogram[kBins - 1];
  const Bin bin = find_bin<kThreads, kBins, kLowestBin>(s.histogram, sample_k, s.search, ThisCta{});
  if (bin.bin < 0) return kLowest;
  uint32_t smallest = uint32_t(bin.bin) << kHalfShift;
  if (bin.population > sample_k / 4) {           // a crowd: its halves one by one
    constexpr uint32_t kHalves = 1 << kHalfShift;
    clear_words<kThreads>(s.histogram);
    __syncthreads();
    for_each_half([&](uint32_t half) {
      if (half - smallest < kHalves) atomicAdd(&s.histogram[half - smallest], 1);
    });
    __syncthreads();
    smallest += find_bin<kThreads, kHalves>(s.histogram, sample_k - bin.above, s.search, ThisCta{}).bin;
  }
  // What rounds to the smallest half may lie below it, but not below the half before. There is no -0.
  return {float_of_half(half_of_ordered(smallest == 0x8000 ? smallest - 2 : smallest - 1)), INT_MAX};
}
// [sample]

// ---- [T2] The list ------------------------------------------------------------------------------------------------------
/// Puts the columns that `bound` keeps into the list, of all tiles from `tile` on, until a thread of this warp has no room.
/// @param x, y  that tile and the next one
/// @param mine  entries of this thread
/// @return      the first tile that is not in the list
// [collect]
template <int kThreads>
DSA_DEVICE int collect(const Tiles<kThreads>& tiles, const List& list, const Bound& bound, Quads& x, Quads& y, int tile,
                       int& mine) {
  constexpr uint32_t kRow = kThreads * sizeof(uint2);
  // The shuffle keeps this from being worked out every time.
  const float below = __shfl_sync(0xffffffffu, float_below_key(selectable_key(bound.value)), 0);
  const uint32_t own = ptx::smem_address(list.entry + threadIdx.x), full = own + uint32_t(list.rows) * kRow;
  uint32_t place = own + uint32_t(mine) * kRow;
  const auto keep_tile = [&](const Quads& q) {
    const uint32_t before = place;
    for (int i = 0; i < kTileQuads; ++i) {
      const int column = q.column + i * tiles.stride();
      const float less = column > bound.column ? bound.value : below;   // behind the bound's column, only what is larger
      const auto keep = [&](float value, int column) {
        if (value > less) {
          *ptx::smem_pointer<uint2>(place) = make_uint2(__float_as_uint(value), uint32_t(column));
          place += kRow;
        }
      };
      keep(q.x[i].x, column), keep(q.x[i].y, column + 1), keep(q.x[i].z, column + 2), keep(q.x[i].w, column + 3);
      place = min(place, full);                  // the places behind are written again and again
    }
    if (!__any_sync(0xffffffffu, place == full)) return true;
    place = before;
    return false;
  };
  while (tile < tiles.count) {
    if (!keep_tile(x)) break;
    load(x, tiles, tile + 2);
    if (++tile == tiles.count || !keep_tile(y)) break;
    load(y, tiles, tile + 2);
    ++tile;
  }
  mine = int((place - own) / kRow);
  return tile;
}
// [collect]

// ---- [T3] The threshold ---------------------------------------------------------------------------------------------------
/// The k-th largest entry of more, whatever they are: a radix select for the value, and one for the last column of a tie. All
/// threads; nobody uses the union before or after.
// [kth]
template <int kThreads> DSA_DEVICE Bound kth_entry(SharedStorage& s, const List& list, int mine, int k) {
  const Threshold value = radix_select<kThreads>(s.select, k, ThisCta{}, [&](const auto& f) {
    for_each_entry<kThreads>(list, mine, [&](float value, int column) { f(selectable_key(value), column); });
  });
  if (value.ties == 0) return {float_of_key(value.key + 1), INT_MAX};   // everything larger than value.key
  const float tie = float_of_key(value.key);
  const Threshold last = radix_select<kThreads>(s.select, value.ties, ThisCta{}, [&](const auto& f) {
    for_each_entry<kThreads>(list, mine, [&](float value, int column) {
      if (value == tie) f(~uint32_t(column), column);
    });
  });
  return {tie, int(~(last.ties > 0 ? last.key : last.key + 1))};
}
// [kth]

/// Which of the entries are selected: what `sure` keeps, and the first so many of a bin below it, of those from `smallest` on.
struct Cut {
  Bound sure;
  float smallest;    ///< nothing below it is selected
  int members;       ///< of the bin; 0 if all is sure
  int wanted;        ///< of them
};
constexpr Cut only(const Bound& bound) { return {bound, bound.value, 0, 0}; }   ///< no bin

/// The cut for the k largest entries of more; none is below `bound`. All threads; nobody uses the union before or after.
// [cut]
template <int kThreads> DSA_DEVICE Cut find_cut(SharedStorage& s, const List& list, int mine, int k, const Bound& bound) {
  uint32_t first = selectable_key(bound.value);  // of the bins, then of the bin
  int shift = kFineShift;
  clear_words<kThreads>(s.histogram);
  __syncthreads();
  for_each_entry<kThreads>(list, mine, [&](float value, int) {
    atomicAdd(&s.histogram[min((selectable_key(value) - first) >> kFineShift, uint32_t(kBins - 1))], 1);
  });
  __syncthreads();
  Bin bin = find_bin<kThreads, kBins>(s.histogram, k, s.search, ThisCta{});   // its last barrier: nobody reads any more
  const bool last = bin.bin == kBins - 1;        // has no upper end
  first += uint32_t(bin.bin) << kFineShift;
  if (bin.population > kCrowd && !last) {        // as many bins for this one
    shift = kFinestShift;
    clear_words<kThreads>(s.histogram);
    __syncthreads();
    for_each_entry<kThreads>(list, mine, [&](float value, int) {
      const uint32_t above = selectable_key(value) - first;
      if (above < 1u << kFineShift) atomicAdd(&s.histogram[above >> kFinestShift], 1);
    });
    __syncthreads();
    const Bin inner = find_bin<kThreads, kBins>(s.histogram, k - bin.above, s.search, ThisCta{});
    first += uint32_t(inner.bin) << kFinestShift;
    bin = {inner.bin, bin.above + inner.above, inner.population};
  }
  if (bin.population > kMembers) return only(kth_entry<kThreads>(s, list, mine, k));
  const float largest = last ? INFINITY : float_below_key(min(first + (1u << shift), kInfinity + 1));
  return {{largest, -1}, float_of_key(first), bin.population, k - bin.above};
}
// [cut]

/// Only the entries that `bound` keeps stay, dealt out evenly. All threads; there is a barrier in it.
/// @return  entries of this thread
// [keep]
template <int kThreads> DSA_DEVICE int keep(SharedStorage& s, const List& list, int mine, const Bound& bound) {
  const int t = threadIdx.x;
  if (t == 0) s.entries = 0;
  for (int i = 0; i < list.rows; ++i) {
    uint2 entry{};
    if (i < mine) entry = list.entry[i * kThreads + t];
    __syncthreads();                             // what is written now has been read
    if (i < mine && keeps(bound, __uint_as_float(entry.x), int(entry.y))) list.entry[atomicAdd(&s.entries, 1)] = entry;
  }
  __syncthreads();
  return (s.entries - t + kThreads - 1) / kThreads;
}
// [keep]

// ---- [T4] Writing -----------------------------------------------------------------------------------------------------------
/// Writes the columns that `cut` selects of the list, by rising column. All threads; nobody uses the union before, and the bits
/// and s.members are 0. The list is used up.
// [write]
template <int kThreads>
DSA_DEVICE void write_entries(SharedStorage& s, const TopkRow& row, const List& list, int mine, Cut cut) {
  constexpr int kWords = kWindow / 32 / kThreads;
  const int t = threadIdx.x;
  const bool once = row.last - row.aligned <= kWindow;
  int written = 0;
  for (int first = row.aligned; first < row.last; first += kWindow) {
    int later = 0;                               // entries of this thread that are selected, but behind this window
    const auto leave = [&](float value, int column) {
      list.entry[kThreads * later++ + t] = make_uint2(__float_as_uint(value), uint32_t(column));
    };
    // Whether the column is selected and lies in this window; if so, it gets its bit. No branches: most lanes set one.
    const auto select = [&](int column, bool selected) {
      const uint32_t bit = uint32_t(column - first);
      const bool here = selected & (bit < uint32_t(kWindow));
      atomicOr(&s.bits[bit / 32 % (kWindow / 32)], here ? 1u << bit % 32 : 0);
      return here;
    };
    for_each_entry<kThreads>(list, mine, [&](float value, int column) {
      const bool sure = keeps(cut.sure, value, column);
      if (!select(column, sure) & (value >= cut.smallest)) {   // rare
        if (sure) leave(value, column);
        else if (cut.members > 0) s.member[atomicAdd(&s.members, 1)] = member_order(selectable_key(value), column);
      }
    });
    __syncthreads();
    for (int i = t; i < cut.members; i += kThreads) {
      const uint64_t member = s.member[i];
      const bool selected = rank_among(s.member, cut.members, member) < cut.wanted;
      if (!select(column_of(member), selected) & selected) leave(0, column_of(member));
    }
    __syncthreads();
    uint32_t word[kWords];
    int count = 0;
    for (int i = 0; i < kWords; ++i) word[i] = s.bits[kWords * t + i], count += __popc(word[i]);
    const Scan scan = block_scan<kThreads>(uint32_t(count), s.search.warp_total);
    const auto write = [&](int32_t* place) {
      for (int i = 0; i < kWords; ++i) {
        const int column = first + 32 * (kWords * t + i);
        int32_t *from = place, *to = place += __popc(word[i]);
        for (uint32_t left = word[i]; left;) {   // a bit from either end; the last one may be both
          const int low = __ffs(int(left)) - 1, high = 31 - __clz(int(left));
          *from++ = column + low, *--to = column + high;
          left &= (left - 1) & ~(1u << high);
        }
      }
    };
    if (once) {                                  // in whole sectors, by way of the list, which nobody needs any more
      int32_t* selected = reinterpret_cast<int32_t*>(list.entry);
      write(selected + scan.before);
      __syncthreads();
      for (int i = t; i < int(scan.total); i += kThreads) row.indices[i] = selected[i];
    } else {
      write(row.indices + written + scan.before);
      clear_words<kThreads>(s.bits);
      __syncthreads();
    }
    written += int(scan.total);
    mine = later, cut = only(kLowest);
  }
  fill_rest<kThreads>(row, written);
}
// [write]

template <int kThreads, int kCtas>
static __global__ void __launch_bounds__(kThreads, kCtas) kernel(const TopkArgs a, int rows, int ahead) {
  SharedStorage& s = shared_memory<SharedStorage>();
  TopkRow row = topk_row(a, blockIdx.x);
  // The shuffle keeps the address from being worked out again for every tile.
  row.logits = reinterpret_cast<const float*>(__shfl_sync(0xffffffffu, reinterpret_cast<unsigned long long>(row.logits), 0));
  const List list{reinterpret_cast<uint2*>(&s + 1), rows};
  const int t = threadIdx.x;
  const Tiles<kThreads> tiles{row, tiles_of(row.last - row.aligned, tile_slots(kThreads))};
  Quads x{}, y{};

  trace_step("[T1] sample");
  load(x, tiles, 0), load(y, tiles, 1);
  clear_words<kThreads>(s.bits);
  if (t == 0) s.members = 0, s.ahead = row_ahead(a, int64_t(blockIdx.x) + ahead);
  Bound bound = kLowest;
  if (4 * kTileQuads * tiles.count >= rows) bound = sample_bound(s, tiles, x, y);   // a list might get full

  trace_step("[T2] collect");
  // [rounds]
  int tile = 0, mine = 0, entries = 0;
  while (true) {
    tile = collect<kThreads>(tiles, list, bound, x, y, tile, mine);
    const Scan scan = block_scan<kThreads>(uint32_t(mine) | uint32_t(tile < tiles.count) << 16, s.search.warp_total);
    entries = int(scan.total & 0xffff);
    if (scan.total >> 16) {                      // some warp has no room
      if (entries > row.k) bound = kth_entry<kThreads>(s, list, mine, row.k);
      mine = keep<kThreads>(s, list, mine, bound);
    } else if (entries < row.k && bound.value > kLowest.value) {   // the sample's bound was too high
      tile = 0, mine = 0, bound = kLowest;
    } else {
      break;
    }
    load(x, tiles, tile), load(y, tiles, tile + 1);
  }
  // [rounds]
  if (t == 0) prefetch(s.ahead);

  trace_step("[T3] threshold");
  const Cut cut = entries > row.k ? find_cut<kThreads>(s, list, mine, row.k, bound) : only(kLowest);
  trace_step("[T4] write");
  write_entries<kThreads>(s, row, list, mine, cut);
}

/// For short rows.
static const RungEntry* rung_4() { return find_rung(Stage::kTopk, kThisDevice, "04_resident_keys"); }

static const char* unsupported(const TopkArgs& a) {
  return rung_4() ? topk_row_unsupported(a) : "needs the step 04_resident_keys of topk";
}

static cudaError_t launch(const TopkArgs& a, cudaStream_t stream) {
  if (a.rows == 0 || a.topk == 0) return cudaSuccess;
  const auto rows = [&](int threads) { return int((int64_t(a.topk) + threads - 1) / threads + kMargin); };
  const auto bytes = [&](int threads) { return sizeof(SharedStorage) + std::size_t(rows(threads) + kSpare) * threads * sizeof(uint2); };
  if (a.n < 12 * int64_t(a.topk) || bytes(256) > kMaxSharedMemory) return cudaError_t(rung_4()->launch(a, stream));
  const auto with = [&](auto* kernel, int threads, int ctas) {
    const LaunchConfig config{dim3(unsigned(a.rows)), dim3(unsigned(threads)), bytes(threads), stream};
    return dsa::launch(kernel, config, a, rows(threads), ctas * sm_count());
  };
  // A CTA that is alone on its SM takes more threads.
  if (a.rows <= sm_count() && bytes(512) <= kMaxSharedMemory) return with(kernel<512, 1>, 512, 1);
  return with(kernel<256, 3>, 256, 3);
}

static const Register<TopkArgs, unsupported, launch> registered{
    "06_early_bound", "the first tile gives a bound: most columns are compared once", Accuracy::kExact, Repeatable::kYes};

}  // namespace dsa::topk_06

/// @file 03_half_keys.cu
/// Index and top-k, rung 3: logits that nobody wants are not even stored; two bytes say enough.
///
/// | before        | 02_chained.cu: 4 bytes per logit are written and read, to find out that it is not among the largest  |
/// |---------------|-----------------------------------------------------------------------------------------------------|
/// | **this rung** | the scorer writes fp16 keys; the few columns that share the threshold's key are scored once more     |
/// | next          | your own: walkthrough/your_kernel                                                                   |
/// | reference     | reference/index_topk.cpp                                                                            |
/// | chapter       | @ref index_topk_03                                                                                  |
///
///     for each chunk of queries, three grids, the second and third overlapping the end of the one before:
///
///     score: the roles of indexer 09      select: a CTA per query               resolve: a CTA per block of queries
///     --------------------------------    ----------------------------------    ----------------------------------------
///     [X1] select may begin               [X3] a window of at most topk         [X10] their columns scored again, 64 at a
///     [X2] keys of longer windows              columns: all of them                   time, by the same instructions
///                                         [X4] else wait for score              [X11] ranked, and written
///                                         [X5] read the row's keys              [X12] rows with too many: all of the row
///                                         [X6] a bound from a sample                  scored again, as fp32, and searched
///                                         [X7] count what reaches it
///                                         [X8] class of the threshold
///                                         [X9] write what is above; leave
///                                              the members for resolve
///
/// Exact   rounding to fp16 keeps the order, so what is above the threshold's class is selected and what is below is not. A
///         score depends on its key, its query and the instructions, not on its place in a tile; so the scores of [X10] are,
///         bit by bit, those that the scorer had before it rounded them. tests/index_topk/exact.cpp compares.
/// Row     of the scratch, 4 bytes per column: the keys in the first half; then, if the row is pending, a Pending and its
///         members; in [X12] fp32 logits.
/// Smem    select 10.5 KiB + 2 B per column; resolve 49 KiB (8 KiB of them members, 16 for 32 heads), 4 CTAs per SM.
/// Expected  us, of 118 | 500 | 1822 in rung 2: the scorer 3 % faster, half the bytes for the selector, and no atomic for 9 keys
///           of 10 in the suffix: 27 -> 22 | 75 -> 45 | 190 -> 95. resolve 6 | 25 | 12. 116 | 480 | 1690.
#include "../common/index_topk_chunk.cuh"
#include "../common/indexer_lean.cuh"
#include "../common/register.cuh"
#include "../common/topk_resident.cuh"
#include "../common/topk_sample.hpp"
#include "../device/trace.cuh"

namespace dsa::index_topk_03 {

// ---- Score ------------------------------------------------------------------------------------------------------------
// [as_key]
struct AsKey {
  using Type = uint16_t;
  static constexpr Type kOutside = kHalfMinusInfinity;
  DSA_DEVICE static Type make(float logit) { return Type(half_keys(logit, 0)); }
};
// [as_key]

template <class Shape>
static __global__ void __launch_bounds__(kScoringThreads, 1)
    score(const IndexerArgs a, const __grid_constant__ IndexerMaps maps, const Pieces pieces) {
  ptx::griddepcontrol_launch_dependents();           // [X1]
  score_pieces<Shape, AsKey>(a, maps, pieces);       // [X2]
}

// ---- Rows of keys -----------------------------------------------------------------------------------------------------
/// As TopkRow, but of keys.
struct KeyRow {
  const uint16_t* keys;  ///< of column 0
  int first, last;       ///< the window
  int aligned;           ///< column at the 16-byte boundary at or before `first`; -7 at the least
  int32_t* indices;      ///< [k]
  int k;
};

DSA_DEVICE KeyRow key_row(const TopkRow& row) {
  KeyRow r{reinterpret_cast<const uint16_t*>(row.logits), row.first, row.last, 0, row.indices, row.k};
  r.aligned = r.first - int(reinterpret_cast<uintptr_t>(r.keys + r.first) / sizeof(uint16_t) % kGroup);
  return r;
}

/// The beginning of a row that some other CTA is going to read.
DSA_DEVICE RowAhead key_row_ahead(const TopkArgs& a, int64_t row) {
  constexpr int kBytes = 65536;
  if (row >= a.rows) return {nullptr, 0};
  const KeyRow next = key_row(topk_row(a, int(row)));
  const int first = next.aligned < next.first ? next.aligned + kGroup : next.aligned;   // whole groups inside the window
  return {next.keys + first, unsigned(max(min(2 * int64_t(next.last - first), int64_t(kBytes)), int64_t(0))) & ~15u};
}

/// Eight keys from a 16-byte boundary on, NaN for columns outside the window.
DSA_DEVICE uint4 make_group(const KeyRow& row, int column) {
  if (column >= row.first && column + kGroup <= row.last) return ptx::ld_global_nc_v4(row.keys + column);
  const auto key = [&](int i) {
    return column + i >= row.first && column + i < row.last ? uint32_t(row.keys[column + i]) : kHalfNan;
  };
  return make_uint4(key(0) | key(1) << 16, key(2) | key(3) << 16, key(4) | key(5) << 16, key(6) | key(7) << 16);
}
DSA_DEVICE uint32_t half_at(const KeyRow& row, int column) { return row.keys[column]; }
/// Not known yet.
DSA_DEVICE uint32_t exact_key(const KeyRow&, int) { return kNeverSelected; }

/// What resolve has to do for a row; at the beginning of the row of the scratch, the members' columns behind it.
struct Pending {
  int members;           ///< columns of the threshold's class; 0: the row is done; kWholeRow
  int wanted;            ///< of them are selected
  int above;             ///< slots that are written
};
constexpr int kWholeRow = -1;
constexpr int kPendingWords = 3;                     ///< only the first is there if `members` is not above 0

// ---- Select -----------------------------------------------------------------------------------------------------------
struct alignas(16) SharedStorage : ResidentStorage {};   ///< the keys follow

/// [X5] All of the row is on its way at once, without a register. Ends without a barrier.
// [read]
template <int kThreads> DSA_DEVICE void read_key_row(const ResidentKeys<kThreads, KeyRow>& k) {
  for (int group = threadIdx.x; group < k.resident(); group += kThreads) {
    const int column = k.row.aligned + kGroup * group;
    if (column >= k.row.first && column + kGroup <= k.row.last) ptx::cp_async_16(&k.smem[group], k.row.keys + column);
    else k.smem[group] = make_group(k.row, column);
  }
  ptx::cp_async_commit_group();
  ptx::cp_async_wait_group<0>();
}
// [read]

DSA_DEVICE void count_key(ResidentStorage& s, uint32_t key) { atomicAdd(&s.histogram[key >> kLowBits], 1); }

/// [X6] Of 512 parts of the row a group each. The bound is the smallest key in the bin of the rank that the row's k-th should have
/// among them, and 4.5 standard deviations more; -inf if the sample does not reach so far. All threads; the histogram is clear.
// [sample]
template <int kThreads>
DSA_DEVICE uint32_t sample_bound(ResidentStorage& s, const ResidentKeys<kThreads, KeyRow>& k) {
  for (int part = threadIdx.x; part < kSampleParts; part += kThreads) {
    const uint4 keys = load_group(k, int(sampled_group(uint32_t(part), uint32_t(k.groups()))), k.groups());
    for (int i = 0; i < kGroup; ++i) count_key(s, key_of(keys, i));
  }
  __syncthreads();
  sum_blocks<kThreads>(s);
  __syncthreads();
  const float rank = float(k.row.k) * kSampleParts / float(k.groups());
  const Bin bin = find_high(s, int(rank + 4.5f * sqrtf(rank)) + 4, ThisCta{});
  const uint32_t first = uint32_t(bin.bin) << kLowBits;
  return bin.bin < 0 ? kHalfMinusInfinity : bin.bin < kTopkBins / 2 ? first : first + (1 << kLowBits) - 1;
}
// [sample]

/// [X7] The histogram of the keys from `bound` on. Ends without a barrier.
// [count]
template <int kThreads>
DSA_DEVICE void count_keys(ResidentStorage& s, const ResidentKeys<kThreads, KeyRow>& k, uint32_t bound) {
  if (bound == kHalfMinusInfinity) {                 // all of them, without a loop over hits
    for (int group = threadIdx.x; group < k.groups(); group += kThreads) {
      const uint4 keys = load_group(k, group, k.groups());
      for (int i = 0; i < kGroup; ++i) count_key(s, key_of(keys, i));
    }
    return;
  }
  for (int group = threadIdx.x; group < k.groups(); group += 2 * kThreads) {
    const uint4 first = load_group(k, group, k.groups()), second = load_group(k, group + kThreads, k.groups());
    for (uint32_t hits = keys_at_least(first, second, bound * 0x10001u); hits; hits &= hits - 1) {
      const int i = (__ffs(int(hits)) - 1) & 15, column = k.row.aligned + kGroup * group + i;   // see keys_at_least()
      count_key(s, key_at(k, i < kGroup ? column : column + kGroup * (kThreads - 1)));
    }
  }
}
// [count]

DSA_DEVICE int counted(const ResidentStorage& s) {
  const int lane = threadIdx.x % 32;
  return int(__reduce_add_sync(0xffffffffu, unsigned(s.block[lane] + s.block[32 + lane])));
}

/// @param scratch  a.logits, to write to
/// @param room     members that a row of it has room for
/// @param ahead    CTAs that the chip holds: the row so much further on begins when this one ends. A hint: any number is right.
template <int kThreads, int kCtas>
static __global__ void __launch_bounds__(kThreads, kCtas) select(const TopkArgs a, float* scratch, int capacity, int room, int ahead) {
  SharedStorage& s = shared_memory<SharedStorage>();
  ptx::griddepcontrol_launch_dependents();
  const int t = threadIdx.x;
  const TopkRow slot = topk_row(a, blockIdx.x);
  const KeyRow row = key_row(slot);
  int* pending = reinterpret_cast<int*>(scratch + blockIdx.x * a.logits_stride);
  const int columns = row.last - row.first;
  if (columns <= row.k) {
    trace_step("[X3] all columns");
    if (t == 0 && a.n > a.topk) pending[0] = 0;      // else nobody asks, and there may be no room
    for (int i = t; i < row.k; i += kThreads) row.indices[i] = i < columns ? row.first + i : kInvalid;
    return;
  }
  const ResidentKeys<kThreads, KeyRow> keys{row, reinterpret_cast<uint4*>(&s + 1), capacity};
  clear_histogram<kThreads>(s);
  if (t < 1 << kLowBits) s.low[t] = 0;
  if (t == 0) s.candidates = s.members = 0, s.pivot = ~uint64_t(0);
  trace_step("[X4] wait");
  ptx::griddepcontrol_wait();
  trace_step("[X5] read");
  read_key_row(keys);
  __syncthreads();
  if (kThreads < 1024 && t == 0) prefetch(key_row_ahead(a, int64_t(blockIdx.x) + ahead));

  trace_step("[X6] bound");
  uint32_t bound = kHalfMinusInfinity;
  if (columns >= 8 * row.k) {
    bound = sample_bound(s, keys);
    __syncthreads();                                 // all have read the histogram
    clear_histogram<kThreads>(s);
    __syncthreads();
  }
  trace_step("[X7] count");
  for (;;) {
    count_keys(s, keys, bound);
    __syncthreads();
    sum_blocks<kThreads>(s);
    __syncthreads();
    if (bound == kHalfMinusInfinity || counted(s) >= row.k) break;
    bound = kHalfMinusInfinity;                      // what is below was not counted: once more
    clear_histogram<kThreads>(s);
    __syncthreads();
  }

  trace_step("[X8] class");
  const int lowest = bound == kHalfMinusInfinity ? s.histogram[kHalfMinusInfinity >> kLowBits] : 0;
  const Cut cut = find_cut(s, keys, ThisCta{});
  // Few keys above the class of -inf, in which there are logits below -65520, perhaps.
  const bool unknown = cut.key == kHalfLowest && lowest > 0;
  const bool whole_row = cut.large || unknown || (cut.open && cut.population > room);
  __syncthreads();

  trace_step("[X9] write");
  if (cut.open && !cut.large)
    for (int i = t; i < cut.population; i += kThreads) mark(s.taken, keys, column_of(s.member[i]), false);
  __syncthreads();
  if (!whole_row) write_selected(s, keys, cut, s.taken, 0);
  int written = 0;
  for (int warp = 0; warp < kThreads / 32; ++warp) written += s.taken[warp];
  if (!cut.open) fill_rest<kThreads>(slot, written);
  // Over the row's first keys, which have long been in smem.
  const int members = whole_row ? kWholeRow : cut.open ? cut.population : 0;
  if (t == 0) pending[0] = members;
  if (t == 0 && members > 0) pending[1] = cut.wanted, pending[2] = written;
  for (int i = t; i < members; i += kThreads) pending[kPendingWords + i] = column_of(s.member[i]);
}

static cudaError_t launch_select(const TopkArgs& a, float* scratch, cudaStream_t stream) {
  const int most = int((kMaxSharedMemory - sizeof(SharedStorage)) / sizeof(uint4));
  const int capacity = min(a.n / kGroup + 2, most);      // a row has up to 7 columns before its first
  const std::size_t bytes = sizeof(SharedStorage) + std::size_t(capacity) * sizeof(uint4);
  const int room = int(min(a.logits_stride - int64_t(kPendingWords), int64_t(kMembers)));
  return with_resident_threads(bytes, a.rows, [&]<int kThreads, int kCtas, int>() {
    LaunchConfig config{dim3(unsigned(a.rows)), dim3(kThreads), bytes, stream};
    config.overlap = true;
    return dsa::launch(select<kThreads, kCtas>, config, a, scratch, capacity, room, kCtas * sm_count());
  });
}

// ---- Resolve ----------------------------------------------------------------------------------------------------------
constexpr int kResolveThreads = 128;                 ///< the warpgroup of one product

template <class Shape> struct ResolveStorage {
  QueryTile<Shape> q;                                ///< columns dealt out as indexer_heads.cuh has it
  alignas(1024) e4m3 k[kGranule * Shape::kDim];
  float weights[kBlockColumns];
  float scale[kGranule];
  Pending pending[Shape::kQueries];
  int first_member[Shape::kQueries + 1];             ///< of each query, in the two below
  int column[Shape::kQueries * kMembers];            ///< later that of a member that is selected, else INT_MAX
  uint64_t member[Shape::kQueries * kMembers];
  RadixSelect select;                                ///< these two for whole rows
  int selectable;
};

/// The block's queries and weights into smem, the columns dealt out. Past the last query, zeros. Ends without a barrier.
// [copy_block]
template <class Shape> DSA_DEVICE void copy_block(ResolveStorage<Shape>& s, const IndexerArgs& a, int64_t first_query) {
  constexpr int kChunks = Shape::kDim / 16, kHeads = Shape::kHeads;
  for (int i = threadIdx.x; i < kBlockColumns * kChunks; i += kResolveThreads) {
    const int column = i / kChunks, place = column % 8;
    const int64_t query = first_query + place / kDealt<Shape>;
    const int head = column / 8 * kDealt<Shape> + place % kDealt<Shape>;
    const bool valid = query < a.s_q;
    ptx::cp_async_16(chunk_address<Shape>(s.q.q, column, i % kChunks),
                     a.q + ((valid ? query : 0) * kHeads + head) * Shape::kDim + i % kChunks * 16, valid ? 16 : 0);
  }
  const int64_t weight = first_query * kHeads + threadIdx.x;
  s.weights[threadIdx.x] = weight < int64_t(a.s_q) * kHeads ? a.weights[weight] : 0;
}
// [copy_block]

/// [X10] Scores up to 64 columns, the i-th being column_at(i), for all queries of the block: use(query of the block, i, logit), in
/// the thread that has it. Begins and ends with a barrier.
// [score_again]
template <class Shape, class ColumnAt, class Use>
DSA_DEVICE void score_again(ResolveStorage<Shape>& s, const IndexerArgs& a, const float (&w)[32], int count,
                            const ColumnAt& column_at, const Use& use) {
  constexpr int kChunks = Shape::kDim / 16;
  const int t = threadIdx.x;
  __syncthreads();                                   // the tile is free; s.column is there
  for (int i = t; i < kGranule * kChunks; i += kResolveThreads) {
    const bool valid = i / kChunks < count;
    const int64_t column = valid ? column_at(i / kChunks) : 0;
    ptx::cp_async_16(chunk_address<Shape>(s.k, i / kChunks, i % kChunks), a.k + column * Shape::kDim + i % kChunks * 16,
                     valid ? 16 : 0);
  }
  if (t < kGranule) s.scale[t] = t < count ? a.k_scale[column_at(t)] : 0;
  ptx::cp_async_commit_group();
  ptx::cp_async_wait_group<0>();
  ptx::fence_proxy_async_shared();                   // written by cp.async, read by wgmma
  __syncthreads();
  float d[64], sum[kDealtKeys<Shape>];
  multiply<Shape>(d, s.k, s.q.q);
  sum_dealt<Shape>(d, w, t, sum);
  for (int i = 0; i < kDealtKeys<Shape>; ++i) {
    const int place = dealt_key<Shape>(t, i);
    if (place < count) use(dealt_query<Shape>(t), place, sum[i] * s.scale[place]);
  }
  __syncthreads();
}
// [score_again]

/// Slots of a query for the members that are selected: behind the others, by falling logit.
// [rank]
template <class Shape> DSA_DEVICE void write_members(ResolveStorage<Shape>& s, int query, int32_t* indices) {
  const Pending pending = s.pending[query];
  const int first = s.first_member[query];
  for (int i = threadIdx.x; i < pending.members; i += kResolveThreads) {
    const uint64_t mine = s.member[first + i];
    const int rank = rank_among(&s.member[first], pending.members, mine);
    if (rank < pending.wanted) indices[pending.above + rank] = column_of(mine);
  }
}
// [rank]

/// The same in deterministic mode, where all slots go by rising column: the others make room, from the last one on.
// [merge]
template <class Shape> DSA_DEVICE void merge_members(ResolveStorage<Shape>& s, int query, int32_t* indices) {
  const int t = threadIdx.x, first = s.first_member[query];
  const Pending pending = s.pending[query];
  for (int i = t; i < pending.members; i += kResolveThreads) {
    const uint64_t mine = s.member[first + i];
    const bool selected = rank_among(&s.member[first], pending.members, mine) < pending.wanted;
    s.column[first + i] = selected ? column_of(mine) : INT_MAX;
  }
  __syncthreads();
  const auto selected_before = [&](int column) {
    int count = 0;
    for (int i = 0; i < pending.members; ++i) count += s.column[first + i] < column;
    return count;
  };
  for (int i = t; i < pending.members; i += kResolveThreads) {
    const int column = s.column[first + i];
    if (column == INT_MAX) continue;
    int low = 0, high = pending.above;               // how many of the others come before
    while (low < high) {
      const int middle = (low + high) / 2;
      if (indices[middle] < column) low = middle + 1;
      else high = middle;
    }
    s.member[first + i] = uint64_t(low + selected_before(column));   // its slot: the order is not needed any more
  }
  __syncthreads();
  for (int tile = (pending.above - 1) / kResolveThreads * kResolveThreads; tile >= 0; tile -= kResolveThreads) {
    const int slot = tile + t, column = slot < pending.above ? indices[slot] : INT_MAX;
    __syncthreads();                                 // read before a neighbour is written there
    if (slot < pending.above) indices[slot + selected_before(column)] = column;
  }
  __syncthreads();
  for (int i = t; i < pending.members; i += kResolveThreads)
    if (s.column[first + i] != INT_MAX) indices[s.member[first + i]] = s.column[first + i];
}
// [merge]

/// [X12] Selects from the logits of a row, which this CTA has just written.
// [whole_row]
template <class Shape>
DSA_DEVICE void select_whole_row(ResolveStorage<Shape>& s, const TopkRow& row, bool deterministic) {
  const int t = threadIdx.x;
  const auto for_each = [&](const auto& f) {
    for (int column = row.first + t; column < row.last; column += kResolveThreads) {
      const uint32_t key = sortable_key(row.logits[column]);
      if (key != kNeverSelected) f(key, column);
    }
  };
  __syncthreads();
  if (t == 0) s.selectable = 0;
  __syncthreads();
  int mine = 0;
  for_each([&](uint32_t, int) { ++mine; });
  mine = int(__reduce_add_sync(0xffffffffu, unsigned(mine)));
  if (t % 32 == 0) atomicAdd(&s.selectable, mine);
  __syncthreads();
  Threshold threshold{kNeverSelected, 0, false};     // all of them
  if (s.selectable > row.k) threshold = radix_select<kResolveThreads>(s.select, row.k, ThisCta{}, for_each);

  int written = 0, ties = 0;
  for (int tile = row.first; tile < row.last; tile += kResolveThreads) {
    const int column = tile + t;
    const uint32_t key = column < row.last ? sortable_key(row.logits[column]) : kNeverSelected;
    const bool larger = key > threshold.key, tie = key != kNeverSelected && key == threshold.key;
    const Scan scan = block_scan<kResolveThreads>(uint32_t(larger) | uint32_t(tie) << 16, s.select.search.warp_total);
    const int before = ties + int(scan.before >> 16);
    if (larger || (tie && before < threshold.ties))
      row.indices[written + int(scan.before & 0xffff) + min(before, threshold.ties)] = column;
    written += int(scan.total & 0xffff);
    ties += int(scan.total >> 16);
  }
  fill_rest<kResolveThreads>(row, written + min(ties, threshold.ties));
}
// [whole_row]

/// @param a, rows  the same chunk, for scoring and for selecting
template <class Shape>
static __global__ void __launch_bounds__(kResolveThreads, 4) resolve(const IndexerArgs a, const TopkArgs rows) {
  ResolveStorage<Shape>& s = shared_memory<ResolveStorage<Shape>>();
  constexpr int kQueries = Shape::kQueries;
  const int t = threadIdx.x, first_query = int(blockIdx.x) * kQueries;
  const auto row_of = [&](int query) { return a.logits + (first_query + query) * a.logits_stride; };
  copy_block(s, a, first_query);
  ptx::griddepcontrol_wait();
  if (t < kQueries) {
    const int* words = reinterpret_cast<const int*>(row_of(t));
    Pending pending{0, 0, 0};
    if (first_query + t < a.s_q) pending.members = words[0];
    if (pending.members > 0) pending.wanted = words[1], pending.above = words[2];
    s.pending[t] = pending;
  }
  __syncthreads();
  int total = 0;
  bool whole_rows = false;
  for (int query = 0; query < kQueries; ++query) {
    if (t == 0) s.first_member[query] = total;
    const int members = s.pending[query].members;
    for (int i = t; i < members; i += kResolveThreads)
      s.column[total + i] = reinterpret_cast<const int*>(row_of(query))[kPendingWords + i];
    total += max(members, 0);
    whole_rows |= members == kWholeRow;
  }
  if (t == 0) s.first_member[kQueries] = total;
  if (total == 0 && !whole_rows) {
    ptx::cp_async_wait_group<0>();
    return;
  }
  float w[32];
  load_dealt_weights<Shape>(w, s.weights, t);

  // [members]
  trace_step("[X10] score again");
  for (int first = 0; first < total; first += kGranule) {
    score_again(s, a, w, min(kGranule, total - first), [&](int i) { return s.column[first + i]; },
                [&](int query, int i, float logit) {
                  const int member = first + i;      // of one query; the others' logits of this column are of no use
                  if (member >= s.first_member[query] && member < s.first_member[query + 1])
                    s.member[member] = member_order(sortable_key(logit), s.column[member]);
                });
  }
  trace_step("[X11] rank");
  for (int query = 0; query < kQueries; ++query) {
    int32_t* indices = rows.indices + int64_t(first_query + query) * rows.topk;
    if (s.pending[query].members > 0) {
      if (rows.deterministic) merge_members(s, query, indices);
      else write_members(s, query, indices);
    }
  }
  // [members]
  if (!whole_rows) return;

  trace_step("[X12] whole rows");
  int begin = a.s_kv, end = 0;
  for (int query = 0; query < kQueries; ++query)
    if (s.pending[query].members == kWholeRow) {
      const Window window = window_of(a, first_query + query);
      begin = min(begin, window.begin), end = max(end, window.end);
    }
  for (int first = begin; first < end; first += kGranule) {
    score_again(s, a, w, min(kGranule, end - first), [&](int i) { return first + i; },
                [&](int query, int i, float logit) {
                  if (s.pending[query].members == kWholeRow) row_of(query)[first + i] = logit;
                });
  }
  for (int query = 0; query < kQueries; ++query)
    if (s.pending[query].members == kWholeRow) select_whole_row(s, topk_row(rows, first_query + query), rows.deterministic);
}

static cudaError_t launch_resolve(const IndexerArgs& a, const TopkArgs& rows, cudaStream_t stream) {
  return with_indexer_shape(a, [&](auto shape) {
    using Shape = decltype(shape);
    const unsigned blocks = unsigned((a.s_q + Shape::kQueries - 1) / Shape::kQueries);
    LaunchConfig config{dim3(blocks), dim3(kResolveThreads), sizeof(ResolveStorage<Shape>), stream};
    config.overlap = true;
    return dsa::launch(resolve<Shape>, config, a, rows);
  });
}

// ---- All three ----------------------------------------------------------------------------------------------------------
static const char* unsupported(const IndexTopkArgs& a) {
  if (const char* why = scoring_unsupported(scoring(a, 0, a.chunk))) return why;
  return topk_row_unsupported(selection(a, 0, a.chunk));
}

static cudaError_t launch(const IndexTopkArgs& a, cudaStream_t stream) {
  if (a.s_q == 0 || a.topk == 0) return cudaSuccess;
  for (int first = 0; first < a.s_q; first += a.chunk) {
    const int count = min(a.chunk, a.s_q - first);
    const bool longer = a.s_kv > a.topk;             // else every window is short
    const IndexerArgs queries = scoring(a, first, count);
    const TopkArgs rows = selection(a, first, count);
    if (longer) {
      Pieces pieces = make_pieces(queries, sm_count());
      pieces.skip = a.topk;
      const auto kernel_for = [](auto shape) { return score<decltype(shape)>; };
      if (const cudaError_t error = launch_scoring(kernel_for, queries, pieces, stream)) return error;
    }
    if (const cudaError_t error = launch_select(rows, a.logits, stream)) return error;
    if (longer)
      if (const cudaError_t error = launch_resolve(queries, rows, stream)) return error;
  }
  return cudaSuccess;
}

static const Register<IndexTopkArgs, unsupported, launch> registered{
    "03_half_keys", "the scorer writes 16-bit keys; the class at the threshold is scored again", Accuracy::kFp8, Repeatable::kYes};

}  // namespace dsa::index_topk_03

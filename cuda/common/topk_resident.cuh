/// @file topk_resident.cuh
/// A selection on 16-bit keys that stay in shared memory: the row is read once, and only the few logits whose key is that
/// of the threshold are looked at again.
///
/// The 16-bit key, a half, orders columns, all but those that share a key. So the k largest are all columns with a key above
/// the threshold's, and some members of the threshold's class, usually 8 to 30, which their fp32 values decide; among equal
/// values the lowest columns are taken. A class of any size is decided, a large one by radix select over its members.
///
/// Keys are kept in groups of 8 (16 bytes). Groups that do not fit are made from the logits again whenever they are needed:
/// slower, not different. Everything works for the columns of one CTA and for those of a cluster, see topk_search.cuh.
///
/// Each warp has a contiguous piece of the columns, so that it can write its own selection in order once it knows how many
/// columns the pieces before it contribute.
///
/// What a kernel of this kind spends is instructions, 30 per column at 4 TB/s, so the passes over all columns count them:
/// about 6 to read, 5 to scan, 6 to write.
#pragma once

#include "topk_half_key.cuh"
#include "topk_row.cuh"

namespace dsa {

constexpr int kGroup = 8;                        ///< keys of 16 bytes
constexpr int kLowBits = 5;                      ///< of a key; the histogram has a bin for each value of the 11 others
constexpr int kTopkBins = 1 << (16 - kLowBits);
constexpr int kBlocks = kTopkBins / 32;          ///< of bins: one per lane
constexpr int kMembers = 512;                    ///< a class up to this size is ranked by comparing all with all

struct ResidentStorage {
  union {
    int histogram[kTopkBins];                    ///< of the high bits of the keys, as they are: see from_top()
    uint64_t member[2 * kMembers];               ///< later, the threshold's class as member_order(): those of this CTA, and
                                                 ///< in the second half those of all CTAs of a cluster
  };
  union {
    int candidate[kMembers];                     ///< columns in the threshold's bin, or of its class
    RadixSelect select;                          ///< for a class that is too large to be collected
  };
  int block[kBlocks];                            ///< sums of the histogram
  int low[1 << kLowBits];                        ///< of the low bits inside the bin at the threshold
  int taken[32];                                 ///< columns that each warp selects
  int candidates, members;
  uint64_t pivot;                                ///< the last member that is selected
};

/// The columns that a CTA has, as keys.
template <int kThreads> struct ResidentKeys {
  TopkRow row;
  uint4* smem;                                   ///< [resident()] groups; group g holds columns aligned + 8 g and up
  int capacity;                                  ///< groups that smem has room for
  // Worked out again where they are needed: that is cheaper than a register each.
  DSA_DEVICE int groups() const { return (row.last - row.aligned + kGroup - 1) / kGroup; }
  DSA_DEVICE int resident() const { return min(groups(), capacity); }
  DSA_DEVICE int groups_per_warp() const { return (groups() + kThreads / 32 - 1) / (kThreads / 32); }
};

DSA_DEVICE uint32_t key_of(const uint4& keys, int i) {
  const uint32_t low = i & 2 ? keys.y : keys.x, high = i & 2 ? keys.w : keys.z;   // selections, no branches
  return (i & 4 ? high : low) >> 16 * (i & 1) & 0xffff;
}

/// Which of 16 keys are at least `bound` (a half, twice): key i is bit i for even i and bit 16 + i for odd i. One instruction
/// compares two keys, one more keeps both results.
// [at_least]
DSA_DEVICE uint32_t keys_at_least(const uint4& first, const uint4& second, uint32_t bound) {
  const uint32_t word[8] = {first.x, first.y, first.z, first.w, second.x, second.y, second.z, second.w};
  uint32_t mask = 0;
  for (int i = 0; i < 8; ++i) mask |= halves_at_least(word[i], bound) & 0x20001u << 2 * i;
  return mask;
}
/// As 16 bits by rising number.
DSA_DEVICE uint32_t in_order(uint32_t mask) { return (mask | mask >> 16) & 0xffff; }
// [at_least]

/// From the logits again: a group; a key; what orders the members of a class.
DSA_DEVICE uint4 make_group(const TopkRow& row, int column) {
  const float4 x = load_quad(row, column), y = load_quad(row, column + 4);
  return make_uint4(half_keys(x.x, x.y), half_keys(x.z, x.w), half_keys(y.x, y.y), half_keys(y.z, y.w));
}
DSA_DEVICE uint32_t half_at(const TopkRow& row, int column) { return half_keys(row.logits[column], 0) & 0xffff; }
DSA_DEVICE uint32_t exact_key(const TopkRow& row, int column) { return sortable_key(row.logits[column]); }

/// Group `group` of a piece that ends before `end`; behind it, keys that are never selected.
template <int kThreads> DSA_DEVICE uint4 load_group(const ResidentKeys<kThreads>& k, int group, int end) {
  if (group < min(end, k.resident())) return k.smem[group];
  if (group < end) return make_group(k.row, k.row.aligned + kGroup * group);
  constexpr uint32_t kNone = kHalfNan * 0x10001u;
  return make_uint4(kNone, kNone, kNone, kNone);
}

/// f(keys, column of the first) for each group of this warp. All lanes come along, those past the end with keys that are
/// never selected, so that f may contain warp collectives.
// [groups]
template <int kThreads, class F> DSA_DEVICE void for_each_group(const ResidentKeys<kThreads>& k, const F& f) {
  const int lane = threadIdx.x % 32, begin = int(threadIdx.x) / 32 * k.groups_per_warp();
  const int end = min(begin + k.groups_per_warp(), k.groups());
  for (int group = begin + lane; group - lane < end; group += 32)
    f(load_group(k, group, end), k.row.aligned + kGroup * group);
}
// [groups]

/// Key of one column.
template <int kThreads> DSA_DEVICE uint32_t key_at(const ResidentKeys<kThreads>& k, int column) {
  const unsigned position = unsigned(column - k.row.aligned);
  if (position / kGroup < unsigned(k.resident())) return reinterpret_cast<const uint16_t*>(k.smem)[position];
  return half_at(k.row, column);
}

// ---- Reading ----------------------------------------------------------------------------------------------------------
/// Reads the row, keeps its keys and counts their high bits. Clears the storage while the first loads are on their way. Ends
/// without a barrier.
// [read]
template <int kThreads, int kLoads> DSA_DEVICE void read_keys(ResidentStorage& s, const ResidentKeys<kThreads>& k) {
  const int t = threadIdx.x, resident = 2 * k.resident();
  uint2* smem = reinterpret_cast<uint2*>(k.smem);
  int tile = 0;
  do {                                           // an empty row reads nothing, but clears
    float4 x[kLoads];
    load_quads(k.row, k.row.aligned + 4 * (tile + t), 4 * kThreads, x);
    if (tile == 0) {
      clear_words<kThreads>(s.histogram);
      if (t < 1 << kLowBits) s.low[t] = 0;
      if (t == 0) s.candidates = s.members = 0;
      __syncthreads();
    }
    for (int i = 0; i < kLoads; ++i) {
      const uint32_t pair[2] = {half_keys(x[i].x, x[i].y), half_keys(x[i].z, x[i].w)};
      const int quad = tile + i * kThreads + t;
      if (quad < resident) smem[quad] = make_uint2(pair[0], pair[1]);
      for (int j = 0; j < 2; ++j) {
        atomicAdd(&s.histogram[pair[j] >> kLowBits & (kTopkBins - 1)], 1);
        atomicAdd(&s.histogram[pair[j] >> (16 + kLowBits)], 1);
      }
    }
    tile += kLoads * kThreads;
  } while (tile < 2 * k.groups());
}
// [read]

// ---- The class of the threshold ---------------------------------------------------------------------------------------
/// Selected are the columns whose key is at least `key`, except, if the class is `open`, those of the class that come after the
/// `wanted` largest of its `population` members.
struct Cut {
  uint32_t key;
  int wanted, population;
  bool open;
  bool large;                                    ///< open, and its members are not collected
};

/// Among 32 counts, one per lane, lane 0's keys being the largest: the lane with the k-th largest key. All lanes get it.
// [find_lane]
DSA_DEVICE Bin find_lane(int count, int k) {
  const int inclusive = int(warp_inclusive_scan(uint32_t(count)));
  const uint32_t reached = __ballot_sync(0xffffffffu, inclusive >= k);
  if (!reached) return {-1, __shfl_sync(0xffffffffu, inclusive, 31), 0};
  const int lane = __ffs(int(reached)) - 1;
  const int population = __shfl_sync(0xffffffffu, count, lane);
  return {lane, __shfl_sync(0xffffffffu, inclusive, lane) - population, population};
}
// [find_lane]

/// Bits of halves order positive numbers upwards and negative ones downwards: from the largest keys to the smallest there are
/// blocks 31 to 0, then blocks 32 to 63. The same goes for the bins of a block and for the keys of a bin, one per lane.
DSA_DEVICE int from_top(bool positive) { return positive ? 31 - int(threadIdx.x % 32) : int(threadIdx.x % 32); }

/// The histogram is complete in this CTA. Ends without a barrier.
// [blocks]
template <int kThreads> DSA_DEVICE void sum_blocks(ResidentStorage& s) {
#pragma unroll 2
  for (int bin = 4 * int(threadIdx.x); bin < kTopkBins; bin += 4 * kThreads) {   // eight lanes per block
    const uint4 x = *reinterpret_cast<const uint4*>(&s.histogram[bin]);
    unsigned sum = x.x + x.y + x.z + x.w;
    for (int distance = 1; distance < 8; distance *= 2) sum += __shfl_xor_sync(0xffffffffu, sum, distance);
    if (threadIdx.x % 8 == 0) s.block[bin / 32] = int(sum);
  }
}
// [blocks]

/// The bin of the k-th largest key; -1 if there are fewer than k. Each warp for itself, so that nobody waits. NaN, which has the
/// last bin of block 31, and -inf, with all of block 63, are no keys here.
// [find_high]
template <class Group> DSA_DEVICE Bin find_high(ResidentStorage& s, int k, const Group& group) {
  const int lane = threadIdx.x % 32;
  constexpr int kNanBin = kHalfNan >> kLowBits;
  bool positive = true;
  int above = 0, count = group.sum(&s.block[31 - lane]);
  if (lane == 0) count -= group.sum(&s.histogram[kNanBin]);
  Bin block = find_lane(count, k);
  if (block.bin < 0) {
    positive = false;
    above = block.above;
    block = find_lane(lane < 31 ? group.sum(&s.block[32 + lane]) : 0, k - above);
    if (block.bin < 0) return {-1, above + block.above, 0};
  }
  above += block.above;
  const int first = 32 * (positive ? 31 - block.bin : 32 + block.bin), mine = first + from_top(positive);
  const Bin bin = find_lane(mine == kNanBin ? 0 : group.sum(&s.histogram[mine]), k - above);
  return {first + (positive ? 31 - bin.bin : bin.bin), above + bin.above, bin.population};
}
// [find_high]

/// One pass over the keys: how many are at least `above`, in s.taken; those from `lowest` to below `above` become candidates
/// (`collect`), and their low bits are counted (`count`). Ends without a barrier.
// [scan]
template <int kThreads>
DSA_DEVICE void scan(ResidentStorage& s, const ResidentKeys<kThreads>& k, uint32_t lowest, uint32_t above, bool collect,
                     bool count) {
  // The shuffles change nothing, but the compiler does not work the bounds out again in each round.
  lowest = __shfl_sync(0xffffffffu, lowest * 0x10001u, 0), above = __shfl_sync(0xffffffffu, above * 0x10001u, 0);
  const int lane = threadIdx.x % 32, begin = int(threadIdx.x) / 32 * k.groups_per_warp();
  const int end = min(begin + k.groups_per_warp(), k.groups());
  int taken = 0;
  for (int group = begin + lane; group - lane < end; group += 64) {
    const uint4 first = load_group(k, group, end), second = load_group(k, group + 32, end);
    const uint32_t larger = keys_at_least(first, second, above);
    taken += __popc(larger);
    for (uint32_t inside = keys_at_least(first, second, lowest) & ~larger; inside; inside &= inside - 1) {
      const int i = (__ffs(int(inside)) - 1) & 15, column = k.row.aligned + kGroup * group + i + (i < kGroup ? 0 : 31 * kGroup);
      if (count) atomicAdd(&s.low[key_at(k, column) & ((1 << kLowBits) - 1)], 1);
      if (collect) s.candidate[atomicAdd(&s.candidates, 1)] = column;
    }
  }
  taken = int(__reduce_add_sync(0xffffffffu, unsigned(taken)));
  if (threadIdx.x % 32 == 0) s.taken[threadIdx.x / 32] = taken;
}
// [scan]

/// The warp whose piece a column belongs to has one more.
template <int kThreads> DSA_DEVICE void take(int* taken, const ResidentKeys<kThreads>& k, int column) {
  atomicAdd(&taken[(column - k.row.aligned) / kGroup / k.groups_per_warp()], 1);
}

/// Fewer than k keys lie above the class of -inf. It holds -inf, which nobody selects, and what is below -65520, which may be.
// [lowest_class]
template <int kThreads, class Group>
DSA_DEVICE Cut lowest_class(ResidentStorage& s, const ResidentKeys<kThreads>& k, int wanted, const Group& group) {
  Cut cut{kHalfLowest, 0, 0, false, false};
  if (group.sum(&s.histogram[kHalfMinusInfinity >> kLowBits]) > 0) {
    int members = 0;
    for_each_group(k, [&](const uint4& keys, int column) {
      for (int i = 0; i < kGroup; ++i)
        members += key_of(keys, i) == kHalfMinusInfinity && exact_key(k.row, column + i) != kNeverSelected;
    });
    members = int(__reduce_add_sync(0xffffffffu, unsigned(members)));
    if (threadIdx.x % 32 == 0) atomicAdd(&s.low[0], members);
    group.sync();
    members = group.sum(&s.low[0]);
    if (members > 0) cut = {kHalfMinusInfinity, min(wanted, members), members, true, true};
  }
  scan(s, k, cut.key, cut.open ? half_above(cut.key) : cut.key, false, false);
  return cut;
}
// [lowest_class]

/// From sum_blocks, which group.sync() has made complete. Leaves s.taken, all but the members of an open class, and the members
/// if it is not large. Ends without a barrier.
// [cut]
template <int kThreads, class Group>
DSA_DEVICE Cut find_cut(ResidentStorage& s, const ResidentKeys<kThreads>& k, const Group& group) {
  const Bin high = find_high(s, k.row.k, group);
  if (high.bin < 0) return lowest_class(s, k, k.row.k - high.above, group);

  // A bin of few columns gives its class from its candidates; for a larger one the keys are scanned again.
  const bool positive = high.bin < kTopkBins / 2, few = high.population <= kMembers;
  const uint32_t first = uint32_t(high.bin) << kLowBits, last = first + (1 << kLowBits) - 1;
  scan(s, k, positive ? first : last, half_above(positive ? last : max(first, 0x8001u)), few, true);
  group.sync();
  const int wanted = k.row.k - high.above;
  const Bin low = find_lane(group.sum(&s.low[from_top(positive)]), wanted);
  Cut cut{first + uint32_t(positive ? 31 - low.bin : low.bin), wanted - low.above, low.population, false, false};
  cut.open = cut.wanted < cut.population;
  cut.large = cut.open && cut.population > kMembers;
  if (!few) {
    scan(s, k, cut.key, cut.open ? half_above(cut.key) : cut.key, cut.open && !cut.large, false);
    __syncthreads();
  }

  for (int i = threadIdx.x; i < s.candidates; i += kThreads) {
    const int column = s.candidate[i];
    const uint32_t key = key_at(k, column);
    if (key == cut.key && cut.open) {
      s.member[atomicAdd(&s.members, 1)] = member_order(exact_key(k.row, column), column);
    } else if (half_key_at_least(key, cut.key)) {
      take(s.taken, k, column);
    }
  }
  return cut;
}
// [cut]

// ---- Deciding the class -----------------------------------------------------------------------------------------------
/// A member that is not chosen gets a key that is never selected, if it is in smem.
template <int kThreads>
DSA_DEVICE void mark(int* taken, const ResidentKeys<kThreads>& k, int column, bool chosen) {
  if (chosen) return take(taken, k, column);
  const int position = column - k.row.aligned;
  if (position / kGroup < k.resident()) reinterpret_cast<uint16_t*>(k.smem)[position] = uint16_t(kHalfNan);
}

/// A large class: nothing is stored, the members are met again in every round. Two radix selects, one for
/// the value at the threshold and one for the last column of a tie there. Leaves s.pivot, and counts the selected members.
// [large]
template <int kThreads, class Group>
DSA_DEVICE void decide_large_class(ResidentStorage& s, const ResidentKeys<kThreads>& k, const Cut& cut, const Group& group) {
  const auto for_each_member = [&](const auto& f) {
    for_each_group(k, [&](const uint4& keys, int column) {
      for (int half = 0; half < kGroup; half += kGroup / 2) {
        float x[kGroup / 2];                     // loads in flight before the first is used
        for (int i = 0; i < kGroup / 2; ++i) x[i] = key_of(keys, half + i) == cut.key ? k.row.logits[column + half + i] : 0;
        for (int i = 0; i < kGroup / 2; ++i) {
          const uint32_t key = sortable_key(x[i]);
          if (key_of(keys, half + i) == cut.key && key != kNeverSelected) f(key, column + half + i);
        }
      }
    });
  };
  Threshold value{kNeverSelected, 0, false};              // all members
  if (cut.wanted < cut.population) value = radix_select<kThreads>(s.select, cut.wanted, group, for_each_member);
  uint64_t pivot = uint64_t(value.key + 1) << 32;         // everything larger than value.key
  if (value.ties > 0) {
    const Threshold last = radix_select<kThreads>(s.select, value.ties, group, [&](const auto& f) {
      if (value.all_equal && cut.key != kHalfMinusInfinity) {   // a plateau: not read again; the lowest class has -inf, too
        for_each_group(k, [&](const uint4& keys, int column) {
          for (int i = 0; i < kGroup; ++i)
            if (key_of(keys, i) == cut.key) f(~uint32_t(column + i), column + i);
        });
      } else {
        for_each_member([&](uint32_t key, int column) {
          if (key == value.key) f(~uint32_t(column), column);
        });
      }
    });
    pivot = uint64_t(value.key) << 32 | (last.ties > 0 ? last.key : last.key + 1);
  }
  if (threadIdx.x == 0) s.pivot = pivot;
  int chosen = 0;
  for_each_member([&](uint32_t key, int column) { chosen += member_order(key, column) >= pivot; });
  chosen = int(__reduce_add_sync(0xffffffffu, unsigned(chosen)));
  if (threadIdx.x % 32 == 0) s.taken[threadIdx.x / 32] += chosen;
}
// [large]

/// Decides an open class: its members get their marks and are counted in s.taken. Begins after the barrier that find_cut()
/// needs, and ends with one where there was something to decide.
// [decide]
template <int kThreads>
DSA_DEVICE void decide_class(ResidentStorage& s, const ResidentKeys<kThreads>& k, const Cut& cut) {
  if (cut.large) {
    decide_large_class(s, k, cut, ThisCta{});
    __syncthreads();
  } else if (cut.open) {
    for (int i = threadIdx.x; i < cut.population; i += kThreads) {
      const uint64_t mine = s.member[i];
      const int rank = rank_among(s.member, cut.population, mine);
      mark(s.taken, k, column_of(mine), rank < cut.wanted);
      if (rank == cut.wanted - 1) s.pivot = mine;
    }
    __syncthreads();
  }
}
// [decide]

// ---- Writing ----------------------------------------------------------------------------------------------------------
/// Each warp writes its selected columns, by rising column. `taken` and the marks are complete. A lane has 32 neighbouring
/// columns at a time, so that its hits go to neighbouring slots: they change places in smem, where the keys were that the warp
/// has just read, and leave in whole sectors.
/// @param slot  first slot of this CTA
// [write]
template <int kThreads>
DSA_DEVICE void write_selected(ResidentStorage& s, const ResidentKeys<kThreads>& k, const Cut& cut, const int* taken, int slot) {
  constexpr int kChunk = 128;                    // groups: four per lane
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, begin = warp * k.groups_per_warp();
  const int end = min(begin + k.groups_per_warp(), k.groups());
  slot += int(__reduce_add_sync(0xffffffffu, unsigned(lane < warp ? taken[lane] : 0)));
  // Members have their mark, unless the class was large or they are not in smem.
  const bool unmarked = cut.open && (cut.large || k.groups() > k.capacity);
  // Eight lanes at a time must read from all 32 banks, so they take their four groups in different orders.
  const int turn = lane / 2 % 4;
  const uint32_t bound = cut.key * 0x10001u, back = 0x3210u ^ uint32_t(turn) * 0x1111u;
  for (int chunk = begin; chunk < end; chunk += kChunk) {
    const int group = chunk + 4 * lane, column = k.row.aligned + kGroup * group, limit = min(chunk + kChunk, end);
    uint4 keys[4];
    if (chunk + kChunk == limit && limit <= k.resident()) {
      for (int i = 0; i < 4; ++i) keys[i] = k.smem[group + (i ^ turn)];
    } else {
      for (int i = 0; i < 4; ++i) keys[i] = load_group(k, group + (i ^ turn), end);
    }
    uint32_t hits = in_order(keys_at_least(keys[0], keys[1], bound)) | in_order(keys_at_least(keys[2], keys[3], bound)) << 16;
    hits = ptx::byte_permute(hits, 0, back);     // bit i is column + i
    if (unmarked) {
      for (uint32_t left = hits; left; left &= left - 1) {
        const int at = column + __ffs(int(left)) - 1;
        if (key_at(k, at) == cut.key && member_order(exact_key(k.row, at), at) < s.pivot) hits ^= left & (0 - left);
      }
    }
    const uint32_t inclusive = warp_inclusive_scan(uint32_t(__popc(hits)));
    const int total = int(__shfl_sync(0xffffffffu, inclusive, 31));
    int place = int(inclusive) - __popc(hits);
    if (limit <= k.resident()) {
      // Two bytes per hit, at most as many as the chunk's keys had.
      uint16_t* staged = reinterpret_cast<uint16_t*>(&k.smem[chunk]);
      __syncwarp();                              // all lanes have read their keys
      for (; hits; hits &= hits - 1) staged[place++] = uint16_t(4 * kGroup * lane + __ffs(int(hits)) - 1);
      __syncwarp();
      for (int i = lane; i < total; i += 32) k.row.indices[slot + i] = k.row.aligned + kGroup * chunk + staged[i];
    } else {
      for (; hits; hits &= hits - 1) k.row.indices[slot + place++] = column + __ffs(int(hits)) - 1;
    }
    slot += total;
  }
}
// [write]

// ---- Threads ------------------------------------------------------------------------------------------------------------
/// f<kThreads, kCtas, kLoads>() for a CTA per row with so many bytes of shared memory: threads, CTAs per SM, and loads in flight
/// where rows are read through registers.
// [threads]
template <class F> static cudaError_t with_resident_threads(std::size_t bytes, int rows, const F& f) {
  // A CTA that is alone on its SM takes all the threads.
  if (!fit_on_sm(bytes, 2) || rows <= sm_count()) return f.template operator()<1024, 1, 4>();
  if (!fit_on_sm(bytes, 3)) return f.template operator()<512, 2, 4>();
  if (!fit_on_sm(bytes, 8)) return f.template operator()<256, 3, 8>();
  if (!fit_on_sm(bytes, 10)) return f.template operator()<128, 8, 4>();
  return f.template operator()<128, 10, 4>();
}
// [threads]

}  // namespace dsa

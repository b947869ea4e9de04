/// @file topk_resident.cuh
/// A selection on 16-bit keys that stay in shared memory: the row is read once, and only the few logits whose key is that
/// of the threshold are looked at again.
///
/// The 16-bit key orders columns, all but those that share a key. So the k largest are all columns with a key above the
/// threshold's, and some members of the threshold's class, usually 8 to 30, which their fp32 values decide; among equal
/// values the lowest columns are taken. A class of any size is decided, a large one by radix select over its members.
///
/// Keys are kept in groups of 8 (16 bytes). Groups that do not fit are made from the logits again whenever they are needed:
/// slower, not different. Everything works for the columns of one CTA and for those of a cluster, see topk_search.cuh.
///
/// Each warp has a contiguous piece of the columns, so that it can write its own selection in order once it knows how many
/// columns the pieces before it contribute.
#pragma once

#include "topk_coarse_key.cuh"
#include "topk_row.cuh"

namespace dsa {

constexpr int kGroup = 8;                        ///< keys of 16 bytes
constexpr int kTopkDigitBits = 11;               ///< of the first histogram
constexpr int kTopkBins = 1 << kTopkDigitBits;
constexpr int kLowBits = kCoarseBits - kTopkDigitBits;
constexpr int kMembers = 512;                    ///< a class up to this size is ranked by comparing all with all
constexpr uint32_t kChosen = 0xffff;             ///< above every key: a member of the threshold's class that is selected

struct ResidentStorage {
  union {
    int histogram[kTopkBins];                    ///< bin 0: what is never selected
    uint64_t member[2 * kMembers];               ///< later, the threshold's class: columns, then member_order(). Those of
                                                 ///< this CTA, and in the second half those of all CTAs of a cluster
  };
  int low[1 << kLowBits];                        ///< of the low bits inside the bin at the threshold
  int taken[32];                                 ///< columns that each warp selects
  int members;                                   ///< of the class that this CTA has collected
  uint64_t pivot;                                ///< the last member that is selected
  RadixSelect select;
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
  const uint32_t word = i / 2 == 0 ? keys.x : i / 2 == 1 ? keys.y : i / 2 == 2 ? keys.z : keys.w;
  return i % 2 ? word >> 16 : word & 0xffff;
}

/// Bit i: key i is at least `bound`. An upper key is compared in place, since the lower one cannot decide.
// [at_least]
DSA_DEVICE uint32_t keys_at_least(const uint4& keys, uint32_t bound) {
  const uint32_t word[4] = {keys.x, keys.y, keys.z, keys.w};
  uint32_t mask = 0;
  for (int i = 0; i < 4; ++i)
    mask |= uint32_t((word[i] & 0xffff) >= bound) << (2 * i) | uint32_t(word[i] >= bound << 16) << (2 * i + 1);
  return mask;
}
// [at_least]

DSA_DEVICE uint2 pack_keys(const uint32_t (&key)[4]) { return make_uint2(key[0] | key[1] << 16, key[2] | key[3] << 16); }

/// From the logits again.
DSA_DEVICE uint4 make_group(const TopkRow& row, int column) {
  const float4 x = load_quad(row, column), y = load_quad(row, column + 4);
  const uint2 low = pack_keys({coarse_key(x.x), coarse_key(x.y), coarse_key(x.z), coarse_key(x.w)});
  const uint2 high = pack_keys({coarse_key(y.x), coarse_key(y.y), coarse_key(y.z), coarse_key(y.w)});
  return make_uint4(low.x, low.y, high.x, high.y);
}

/// f(keys, column of the first) for each group of this warp. All lanes come along, those past the end with keys that are
/// never selected, so that f may contain warp collectives.
// [groups]
template <int kThreads, class F> DSA_DEVICE void for_each_group(const ResidentKeys<kThreads>& k, const F& f) {
  const int lane = threadIdx.x % 32, begin = int(threadIdx.x) / 32 * k.groups_per_warp();
  const int end = min(begin + k.groups_per_warp(), k.groups());
  for (int group = begin + lane; group - lane < end; group += 32) {
    const int column = k.row.aligned + kGroup * group;
    uint4 keys = make_uint4(0, 0, 0, 0);
    if (group < min(end, k.resident())) {
      keys = k.smem[group];
    } else if (group < end) {
      keys = make_group(k.row, column);
    }
    f(keys, column);
  }
}
// [groups]

// ---- Reading ----------------------------------------------------------------------------------------------------------
/// Clears the storage; reads the row, keeps its keys and counts their highest digits. Ends without a barrier.
// [read]
template <int kThreads> DSA_DEVICE void read_keys(ResidentStorage& s, const ResidentKeys<kThreads>& k) {
  constexpr int kLoads = 4;                      // 16-byte loads in flight per thread
  const int t = threadIdx.x;
  for (int bin = t; bin < kTopkBins; bin += kThreads) s.histogram[bin] = 0;
  if (t < 1 << kLowBits) s.low[t] = 0;
  if (t == 0) s.members = 0;
  __syncthreads();
  uint2* smem = reinterpret_cast<uint2*>(k.smem);
  for (int tile = 0; tile < 2 * k.groups(); tile += kLoads * kThreads) {
    float4 x[kLoads];
    load_quads(k.row, k.row.aligned + 4 * (tile + t), 4 * kThreads, x);
    for (int i = 0; i < kLoads; ++i) {
      const int quad = tile + i * kThreads + t;
      const uint32_t key[4] = {coarse_key(x[i].x), coarse_key(x[i].y), coarse_key(x[i].z), coarse_key(x[i].w)};
      if (quad < 2 * k.resident()) smem[quad] = pack_keys(key);
      for (int j = 0; j < 4; ++j) atomicAdd(&s.histogram[key[j] >> kLowBits], 1);
    }
  }
}
// [read]

// ---- The class of the threshold ---------------------------------------------------------------------------------------
/// All columns with a key above `key` are selected, and `wanted` of the `population` columns with that key. Without a class
/// (wanted == population, or fewer than k columns in all) `key` is the one below, and `wanted` is 0.
struct Cut {
  uint32_t key;
  int wanted, population;
};

/// [low digit] counts the low bits of the keys in the bin. Ends without a barrier.
// [low]
template <int kThreads> DSA_DEVICE void count_low_bits(ResidentStorage& s, const ResidentKeys<kThreads>& k, int bin) {
  for_each_group(k, [&](const uint4& keys, int) {
    for (int i = 0; i < kGroup; ++i) {
      const uint32_t key = key_of(keys, i);
      if (int(key >> kLowBits) == bin) atomicAdd(&s.low[key & ((1 << kLowBits) - 1)], 1);
    }
  });
}
// [low]

/// From the first histogram, which group.sync() has made complete.
// [cut]
template <int kThreads, class Group>
DSA_DEVICE Cut find_cut(ResidentStorage& s, const ResidentKeys<kThreads>& k, const Group& group) {
  const Bin high = find_bin<kThreads, kTopkBins, 1>(s.histogram, k.row.k, s.select.search, group);
  if (high.bin < 0) return {kCoarseNeverSelected, 0, 0};
  count_low_bits(s, k, high.bin);
  group.sync();
  const int wanted = k.row.k - high.above;
  const Bin low = find_bin<kThreads, 1 << kLowBits>(s.low, wanted, s.select.search, group);
  const uint32_t key = uint32_t(high.bin) << kLowBits | uint32_t(low.bin);
  if (low.population == wanted - low.above) return {key - 1, 0, 0};
  return {key, wanted - low.above, low.population};
}
// [cut]

// ---- Counting, and collecting the class -------------------------------------------------------------------------------
/// Orders the members of a class: by value, among equal ones the lower column first.
DSA_DEVICE uint64_t member_order(uint32_t key, int column) { return uint64_t(key) << 32 | ~uint32_t(column); }
DSA_DEVICE int column_of(uint64_t member) { return int(~uint32_t(member)); }

/// Each warp counts its columns above the cut; a class that is small enough is collected, with its fp32 values.
// [collect]
template <int kThreads>
DSA_DEVICE void count_and_collect(ResidentStorage& s, const ResidentKeys<kThreads>& k, const Cut& cut) {
  const bool collect = cut.wanted > 0 && cut.population <= kMembers;
  int above = 0;
  for_each_group(k, [&](const uint4& keys, int column) {
    for (int i = 0; i < kGroup; ++i) {
      const uint32_t key = key_of(keys, i);
      above += key > cut.key;
      if (collect && key == cut.key) s.member[atomicAdd(&s.members, 1)] = uint32_t(column + i);
    }
  });
  above = int(__reduce_add_sync(0xffffffffu, unsigned(above)));
  if (threadIdx.x % 32 == 0) s.taken[threadIdx.x / 32] = above;
  __syncthreads();
  // All at once, rather than where they were met: one trip to memory.
  for (int i = threadIdx.x; i < s.members; i += kThreads) {
    const int column = int(s.member[i]);
    s.member[i] = member_order(sortable_key(k.row.logits[column]), column);
  }
}
// [collect]

// ---- Deciding the class -----------------------------------------------------------------------------------------------
/// A member that is in smem gets the key kChosen or kCoarseNeverSelected, and if chosen counts for its warp.
template <int kThreads>
DSA_DEVICE void mark(ResidentStorage& s, const ResidentKeys<kThreads>& k, int column, bool chosen) {
  const int position = column - k.row.aligned;
  if (chosen) atomicAdd(&s.taken[position / kGroup / k.groups_per_warp()], 1);
  if (position / kGroup < k.resident())
    reinterpret_cast<uint16_t*>(k.smem)[position] = uint16_t(chosen ? kChosen : kCoarseNeverSelected);
}

/// How many of `count` members come before `mine`.
DSA_DEVICE int rank_among(const uint64_t* member, int count, uint64_t mine) {
  int rank = 0;
  for (int i = 0; i < count; ++i) rank += member[i] > mine;
  return rank;
}

/// A class of more than kMembers: nothing is stored, the members are met again in every round. Two radix selects, one for
/// the value at the threshold and one for the last column of a tie there. Leaves s.pivot, and counts the selected members.
// [large]
template <int kThreads, class Group>
DSA_DEVICE void decide_large_class(ResidentStorage& s, const ResidentKeys<kThreads>& k, const Cut& cut, const Group& group) {
  const auto for_each_member = [&](const auto& f) {
    for_each_group(k, [&](const uint4& keys, int column) {
      for (int half = 0; half < kGroup; half += kGroup / 2) {
        float x[kGroup / 2];                     // loads in flight before the first is used
        for (int i = 0; i < kGroup / 2; ++i) x[i] = key_of(keys, half + i) == cut.key ? k.row.logits[column + half + i] : 0;
        for (int i = 0; i < kGroup / 2; ++i)
          if (key_of(keys, half + i) == cut.key) f(sortable_key(x[i]), column + half + i);
      }
    });
  };
  const Threshold value = radix_select<kThreads>(s.select, cut.wanted, group, for_each_member);
  uint64_t pivot = uint64_t(value.key + 1) << 32;         // everything larger than value.key
  if (value.ties > 0) {
    const Threshold last = radix_select<kThreads>(s.select, value.ties, group, [&](const auto& f) {
      if (value.all_equal) {                     // a plateau: its members need not be read again
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

// ---- Writing ----------------------------------------------------------------------------------------------------------
/// Each warp writes its selected columns, by rising column. s.taken and the marks are complete.
/// @param slot  first slot of this CTA
// [write]
template <int kThreads>
DSA_DEVICE void write_selected(ResidentStorage& s, const ResidentKeys<kThreads>& k, const Cut& cut, int slot) {
  for (int warp = 0; warp < int(threadIdx.x) / 32; ++warp) slot += s.taken[warp];
  // Members have their mark, unless the class was large or they are not in smem.
  const bool unmarked = cut.wanted > 0 && (cut.population > kMembers || k.groups() > k.capacity);
  for_each_group(k, [&](const uint4& keys, int column) {
    uint32_t hits = keys_at_least(keys, cut.key + 1);
    if (unmarked) {
      for (int i = 0; i < kGroup; ++i)
        if (key_of(keys, i) == cut.key && member_order(sortable_key(k.row.logits[column + i]), column + i) >= s.pivot)
          hits |= 1u << i;
    }
    const uint32_t inclusive = warp_inclusive_scan(uint32_t(__popc(hits)));
    int next = slot + int(inclusive) - __popc(hits);
    for (; hits; hits &= hits - 1) k.row.indices[next++] = column + __ffs(int(hits)) - 1;
    slot += int(__shfl_sync(0xffffffffu, inclusive, 31));
  });
}
// [write]

}  // namespace dsa

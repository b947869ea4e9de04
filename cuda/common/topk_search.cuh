/// @file topk_search.cuh
/// The searches that a radix select is made of: the bin of a histogram in which the k-th largest key lies, and from there
/// the k-th largest key itself.
///
/// Both work for the keys of one CTA and for keys that are spread over a cluster. What differs is a `group`: how its
/// members meet, and how a number that each of them has in shared memory is combined.
#pragma once

#include "../device/device.cuh"

namespace dsa {

/// The group of one CTA.
struct ThisCta {
  DSA_DEVICE void sync() const { __syncthreads(); }
  DSA_DEVICE int sum(int* x) const { return *x; }
  DSA_DEVICE uint32_t max(uint32_t* x) const { return *x; }
};

// ---- Scan -----------------------------------------------------------------------------------------------------------
struct Scan {
  uint32_t before;   ///< sum over the threads with a lower number
  uint32_t total;
};

/// Sum over this lane and the lanes below it. All lanes.
DSA_DEVICE uint32_t warp_inclusive_scan(uint32_t value) {
  const int lane = threadIdx.x % 32;
  for (int distance = 1; distance < 32; distance *= 2) {
    const uint32_t lower = __shfl_up_sync(0xffffffffu, value, distance);
    if (lane >= distance) value += lower;
  }
  return value;
}

/// Contains two `__syncthreads`, so all threads must call it.
// [block_scan]
template <int kThreads> DSA_DEVICE Scan block_scan(uint32_t value, uint32_t (&warp_total)[32]) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const uint32_t inclusive = warp_inclusive_scan(value);
  __syncthreads();                               // a previous call may still be reading `warp_total`
  if (lane == 31) warp_total[warp] = inclusive;
  __syncthreads();
  Scan scan{inclusive - value, 0};
  for (int w = 0; w < kThreads / 32; ++w) {
    if (w < warp) scan.before += warp_total[w];
    scan.total += warp_total[w];
  }
  return scan;
}
// [block_scan]

// ---- The bin of the k-th largest key --------------------------------------------------------------------------------
struct Bin {
  int bin;           ///< -1: all bins together hold fewer than k keys
  int above;         ///< keys in higher bins, fewer than k
  int population;    ///< keys in this bin; above + population >= k
};

struct BinSearch {
  uint32_t warp_total[32];
  Bin found;
};

/// All threads call it, after group.sync() has made the histogram complete, and all get the result. Thread 0 has the
/// highest bins, so that the scan runs from the top.
/// @tparam kLowest   bins below it are not looked at
/// @param histogram  [kBins]
/// @param k          at least 1
// [find_bin]
template <int kThreads, int kBins, int kLowest = 0, class Group>
DSA_DEVICE Bin find_bin(int* histogram, int k, BinSearch& s, const Group& group) {
  constexpr int kPerThread = (kBins + kThreads - 1) / kThreads;
  const int top = kBins - 1 - int(threadIdx.x) * kPerThread;
  int count[kPerThread];
  int mine = 0;
  for (int i = 0; i < kPerThread; ++i) {
    count[i] = top - i >= kLowest ? group.sum(&histogram[top - i]) : 0;
    mine += count[i];
  }
  const Scan scan = block_scan<kThreads>(uint32_t(mine), s.warp_total);
  if (int(scan.total) < k) return {-1, int(scan.total), 0};
  int above = int(scan.before);
  for (int i = 0; i < kPerThread; ++i) {
    if (above < k && above + count[i] >= k) s.found = {top - i, above, count[i]};   // true once in the CTA
    above += count[i];
  }
  __syncthreads();
  return s.found;
}
// [find_bin]

/// All threads. Ends without a barrier.
template <int kThreads, class Word, int kWords> DSA_DEVICE void clear_words(Word (&word)[kWords]) {
  static_assert(sizeof(Word) == 4);
  constexpr int kTurn = 4 * kThreads;
  for (int begin = 0; begin < kWords; begin += kTurn) {   // unrolled
    const int i = begin + 4 * int(threadIdx.x);
    if (begin + kTurn <= kWords || i < kWords) *reinterpret_cast<uint4*>(&word[i]) = make_uint4(0, 0, 0, 0);
  }
}

// ---- Members of a class -----------------------------------------------------------------------------------------------
/// Orders them: by value, among equal ones the lower column first.
DSA_DEVICE uint64_t member_order(uint32_t key, int column) { return uint64_t(key) << 32 | ~uint32_t(column); }
DSA_DEVICE int column_of(uint64_t member) { return int(~uint32_t(member)); }

/// How many of `count` members come before `mine`.
DSA_DEVICE int rank_among(const uint64_t* member, int count, uint64_t mine) {
  int rank = 0;
#pragma unroll 4
  for (int i = 0; i < count; ++i) rank += member[i] > mine;
  return rank;
}

// ---- The k-th largest key ---------------------------------------------------------------------------------------------
/// The k largest of some keys are those larger than `key` and `ties` of those equal to it. Also among more keys, if all the
/// others are smaller than the smallest of these.
struct Threshold {
  uint32_t key;
  int ties;
  bool all_equal;    ///< there was only one value among the keys
};

struct RadixSelect {
  uint32_t largest, largest_inverse;
  int histogram[256];
  BinSearch search;
};

/// Radix select, 8 bits at a time from the highest bit in which the keys differ: no round for equal keys, two for keys that
/// share a coarse key, at most four. Nothing is stored per key, so that any number of them can be searched. Begins with a
/// __syncthreads: what a thread stores before is there for all.
/// @param k         1 to the number of keys
/// @param for_each  for_each(f) calls f(key, column) for this thread's part of the keys, each time the same
// [radix_select]
template <int kThreads, class Group, class ForEach>
DSA_DEVICE Threshold radix_select(RadixSelect& s, int k, const Group& group, const ForEach& for_each) {
  const int t = threadIdx.x;
  if (t == 0) s.largest = s.largest_inverse = 0;
  __syncthreads();
  uint32_t largest = 0, largest_inverse = 0;
  for_each([&](uint32_t key, int) {
    largest = max(largest, key);
    largest_inverse = max(largest_inverse, ~key);
  });
  largest = __reduce_max_sync(0xffffffffu, largest);
  largest_inverse = __reduce_max_sync(0xffffffffu, largest_inverse);
  if (t % 32 == 0) {
    atomicMax(&s.largest, largest);
    atomicMax(&s.largest_inverse, largest_inverse);
  }
  group.sync();
  largest = group.max(&s.largest);
  const uint32_t smallest = ~group.max(&s.largest_inverse);
  group.sync();                                  // read by all, before the next search begins

  int undecided = 32 - __clz(int(largest ^ smallest));   // bits of the threshold not known yet
  const auto high_bits = [](int low) { return low == 32 ? 0u : ~0u << low; };
  uint32_t prefix = largest & high_bits(undecided);
  const bool all_equal = undecided == 0;
  while (undecided > 0) {
    const int shift = max(undecided - 8, 0);
    const uint32_t decided = high_bits(undecided), digit = (1u << (undecided - shift)) - 1;
    for (int i = t; i < 256; i += kThreads) s.histogram[i] = 0;
    __syncthreads();
    for_each([&](uint32_t key, int) {
      if ((key & decided) == prefix) atomicAdd(&s.histogram[key >> shift & digit], 1);
    });
    group.sync();
    const Bin bin = find_bin<kThreads, 256>(s.histogram, k, s.search, group);
    group.sync();                                // read by all, before it is cleared
    prefix |= uint32_t(bin.bin) << shift;
    k -= bin.above;
    undecided = shift;
    // The whole bin. Not its lower end: columns that were never keys here, because they are smaller, may lie inside it.
    if (bin.population == k) return {max(prefix, smallest) - 1, 0, false};
  }
  return {prefix, k, all_equal};
}
// [radix_select]

}  // namespace dsa

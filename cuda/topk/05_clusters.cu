/// @file 05_clusters.cu
/// Top-k selector, rung 5: a cluster of CTAs per row, for rows that are long or few.
///
/// | before        | 04_resident_keys.cu: one CTA per row, so one SM's bandwidth and one SM's shared memory            |
/// |---------------|------------------------------------------------------------------------------------------------|
/// | **this rung** | 2, 4 or 8 CTAs share a row; histograms, members and counts are summed over DSMEM                 |
/// | next          | 06_early_bound.cu: most columns are compared once and forgotten                                 |
/// | reference     | reference/topk.cpp                                                                              |
/// | chapter       | @ref topk_05                                                                                    |
///
/// CTA r of a cluster has the r-th slice of the window; [T1] to [T4] are those of rung 4, on slices:
///
///     [T1] read the slice, keys and histogram;
///          sums of the histogram's blocks of 32 bins      cluster barrier
///     [T2] the block, from the sum over the cluster; the bin, from the sum of that block;
///          scan of the keys for own candidates            cluster barrier
///          the class, from the sum of their low bits; fetch own members   cluster barrier
///     [T3] copy the members of all; everybody ranks all, marks its own, and adds up what the slices before it select
///     [T4] write behind the slices before this one        arrive before, wait after: nobody leaves while it is read
///
/// Every CTA computes the same bin, class and ranks, so nothing has to be sent back; each warp reads 97 or 129 numbers of each of the
/// others for that, not their histograms. No atomic crosses CTAs, and CTAs of a cluster are always resident together: no spinning
/// on flags, and the output repeats bit by bit, as in rung 4.
///
/// Cluster size: the smallest with slices of at most 32768 columns, of which three fit in an SM; larger when there are too
/// few rows to give every SM a CTA. Beyond 8 x 110000 columns the rest of the keys is made again from the logits.
///
/// Shared memory  10.5 KiB + 2 B per column of the slice: 74.6 KiB for 32768 columns, 3 CTAs per SM.
/// Expected       us for 4096 x 32768, 4096 x 8192, 4096 x 4096, 1024 x 131072, 64 x 32768, 1 x 131072, as predicted before
///                each form was measured:
///                first form (integer keys, 7 barriers of the cluster)   170-220 | 42-55 | 30-40 | 190-230 | 8-10 | 11-14
///                second (fp16 keys, 5 barriers)                         165     | 57    | 41    | 185     | 11   | 11
///                third (4 barriers)                                     206     | 66    | 43.5  | 235     | 11   | 12.3
#include "../common/register.cuh"
#include "../common/topk_resident.cuh"
#include "../device/trace.cuh"

namespace dsa::topk_05 {

struct alignas(16) SharedStorage : ResidentStorage {   ///< the keys follow
  int before;                                    ///< members that the slices before this one select
};

/// The group of a cluster: see ThisCta. A cluster of one CTA has no need of a cluster's barriers.
// [cluster]
template <int kCluster> struct CtaCluster {
  DSA_DEVICE void sync() const {
    if (kCluster == 1) return __syncthreads();
    ptx::cluster_arrive();
    ptx::cluster_wait();
  }
  DSA_DEVICE int sum(int* x) const {
    if (kCluster == 1) return *x;
    int sum = 0;
#pragma unroll 4
    for (int rank = 0; rank < kCluster; ++rank) sum += *ptx::map_to_cluster(x, rank);
    return sum;
  }
  DSA_DEVICE uint32_t max(uint32_t* x) const {
    uint32_t largest = 0;
    for (int rank = 0; rank < kCluster; ++rank) largest = ::max(largest, *ptx::map_to_cluster(x, rank));
    return largest;
  }
};
// [cluster]

/// The part of the row that CTA `rank` has. Slices are whole groups of keys, so they begin on 16-byte boundaries.
// [slice]
template <int kCluster> DSA_DEVICE TopkRow slice_of(const TopkRow& row, int rank) {
  const int groups = (row.last - row.aligned + kGroup - 1) / kGroup;
  const int columns = (groups + kCluster - 1) / kCluster * kGroup;
  TopkRow slice = row;
  slice.aligned = min(row.aligned + rank * columns, row.last);
  slice.first = max(row.first, slice.aligned);
  slice.last = min(slice.aligned + columns, row.last);
  return slice;
}
// [slice]

/// Where a slice writes.
struct Slots {
  int first;                                     ///< of this slice
  int written;                                   ///< by all
};

/// All slices' s.taken, which group.sync() has made complete. Each warp for itself.
// [slots]
template <int kThreads, int kCluster> DSA_DEVICE Slots slots_of(SharedStorage& s, int rank) {
  const int lane = threadIdx.x % 32;
  unsigned taken[kCluster];                      // loads from all CTAs in flight
  for (int r = 0; r < kCluster; ++r) taken[r] = lane < kThreads / 32 ? unsigned(*ptx::map_to_cluster(&s.taken[lane], r)) : 0;
  Slots slots{0, 0};
  for (int r = 0; r < kCluster; ++r) {
    if (r == rank) slots.first = slots.written;
    slots.written += int(__reduce_add_sync(0xffffffffu, taken[r]));
  }
  return slots;
}
// [slots]

/// [T3] for a class that is not large: own members are marked and counted in `taken`. Everybody knows how many members of
/// the slices before this one are chosen, so nothing needs to be sent once more. Begins and ends with a barrier.
// [rank]
template <int kThreads, int kCluster>
DSA_DEVICE void rank_members(SharedStorage& s, const ResidentKeys<kThreads>& keys, const Cut& cut, int rank, int* taken,
                             Slots& slots) {
  const int t = threadIdx.x;
  uint64_t* all = s.member + kMembers;
  int count = 0, own = 0;                        // members of the slices so far; of those before this one
  for (int r = 0; r < kCluster; ++r) {
    const int members = *ptx::map_to_cluster(&s.members, r);
    if (r == rank) own = count;
    for (int i = t; i < members; i += kThreads) all[count + i] = *ptx::map_to_cluster(&s.member[i], r);
    count += members;
  }
  if (t == 0) s.before = 0;
  __syncthreads();
  for (int i = t; i < count; i += kThreads) {
    const uint64_t mine = all[i];
    const int place = rank_among(all, count, mine);
    if (i >= own && i < own + s.members) mark(taken, keys, column_of(mine), place < cut.wanted);
    if (i < own && place < cut.wanted) atomicAdd(&s.before, 1);
    if (place == cut.wanted - 1) s.pivot = mine;
  }
  __syncthreads();
  slots.first += s.before;
  slots.written += cut.wanted;
}
// [rank]

template <int kThreads, int kCtas, int kLoads, int kCluster>
static __global__ void __launch_bounds__(kThreads, kCtas) kernel(const TopkArgs a, int capacity) {
  SharedStorage& s = shared_memory<SharedStorage>();
  const int t = threadIdx.x, rank = int(ptx::cluster_ctarank());
  const TopkRow row = slice_of<kCluster>(topk_row(a, int(blockIdx.x) / kCluster), rank);
  const ResidentKeys<kThreads> keys{row, reinterpret_cast<uint4*>(&s + 1), capacity};
  const CtaCluster<kCluster> cluster;

  trace_step("[T1] read");
  read_keys<kThreads, kLoads>(s, keys);
  __syncthreads();
  sum_blocks<kThreads>(s);
  cluster.sync();
  trace_step("[T2] class");
  const Cut cut = find_cut(s, keys, cluster);
  cluster.sync();
  trace_step("[T3] rank");
  if (cut.large) {
    decide_large_class(s, keys, cut, cluster);
    cluster.sync();
  }

  // [offsets]
  Slots slots = slots_of<kThreads, kCluster>(s, rank);
  int* taken = s.block;                          // s.taken stays as the others read it
  if (t < kThreads / 32) taken[t] = s.taken[t];
  __syncthreads();
  if (cut.open && !cut.large) rank_members<kThreads, kCluster>(s, keys, cut, rank, taken, slots);
  ptx::cluster_arrive();                         // this CTA has read the last of the others
  trace_step("[T4] write");
  write_selected(s, keys, cut, taken, slots.first);
  if (rank == kCluster - 1) fill_rest<kThreads>(row, slots.written);
  ptx::cluster_wait();                           // and the others have read the last of this one
  // [offsets]
}

static const char* unsupported(const TopkArgs& a) {
  if (a.rows > 0x7fffffff / 8) return "rows must be below 2^28 (a grid of 8 CTAs per row)";
  return topk_row_unsupported(a);
}

/// @param min_slice  columns below which a slice is not worth the barriers
// [size]
static int cluster_size(int rows, int n, int sms, int min_slice) {
  int ctas = 1;
  while (ctas < 8 && n / ctas > 32768) ctas *= 2;
  while (ctas < 8 && int64_t(rows) * ctas * 2 <= sms && n / (2 * ctas) >= min_slice) ctas *= 2;
  return ctas;
}
// [size]

template <int kCluster> static cudaError_t launch_clusters(const TopkArgs& a, int sms, cudaStream_t stream) {
  const int most = int((kMaxSharedMemory - sizeof(SharedStorage)) / sizeof(uint4));
  const int capacity = min((a.n / kGroup + 2) / kCluster + 1, most);   // a row has up to 3 columns before its first
  const std::size_t bytes = sizeof(SharedStorage) + std::size_t(capacity) * sizeof(uint4);
  const auto with = [&](auto* kernel, int threads) {
    const dim3 grid(unsigned(a.rows) * kCluster);
    return dsa::launch(kernel, {grid, dim3(unsigned(threads)), bytes, stream, kCluster}, a, capacity);
  };
  // A CTA that is alone on its SM has all of a slice of 16384 columns in flight.
  if (!fit_on_sm(bytes, 3) || a.rows * kCluster <= sms) return with(kernel<512, 1, 8, kCluster>, 512);
  // Only a CTA that has its row to itself may have a short slice.
  if constexpr (kCluster == 1)
    if (fit_on_sm(bytes, 7)) return with(kernel<128, 7, 4, kCluster>, 128);
  return with(kernel<256, 3, 8, kCluster>, 256);
}

static cudaError_t launch(const TopkArgs& a, cudaStream_t stream) {
  if (a.rows == 0 || a.topk == 0) return cudaSuccess;
  const int sms = sm_count();
  // About 4000 columns on a large chip; few on the emulator, so that small problems have clusters too.
  switch (cluster_size(a.rows, a.n, sms, 32 * sms)) {
    case 1: return launch_clusters<1>(a, sms, stream);
    case 2: return launch_clusters<2>(a, sms, stream);
    case 4: return launch_clusters<4>(a, sms, stream);
    default: return launch_clusters<8>(a, sms, stream);
  }
}

static const Register<TopkArgs, unsupported, launch> registered{
    "05_clusters", "a cluster per row, histograms summed over DSMEM", Accuracy::kExact, Repeatable::kYes};

}  // namespace dsa::topk_05

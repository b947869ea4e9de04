/// @file topk_05_one_load.cu
/// Exercise: where does a slice begin to write? One load per lane finds out, instead of one per CTA. About 8 lines are missing.
///
///     mkdir ~/my_kernels && cp walkthrough/exercises/topk_05_one_load.cu ~/my_kernels/
///     cmake -B build -DDSA_USER_KERNELS=$HOME/my_kernels && cmake --build build
///     build/bin/dsa check --stage topk --step ex_one_load --device emulator
///
/// The chapter (walkthrough/topk/05_clusters.md) has the solution.
#include <cstddef>

#include "cuda/common/register.cuh"
#include "cuda/common/topk_resident.cuh"
#include "cuda/device/trace.cuh"

namespace ex_one_load {

using namespace dsa;

struct alignas(16) SharedStorage : ResidentStorage {   ///< the keys follow
  int before;                                    ///< members that the slices before this one select
};

/// The group of a cluster: see ThisCta. A cluster of one CTA has no need of a cluster's barriers.
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

/// The part of the row that CTA `rank` has. Slices are whole groups of keys, so they begin on 16-byte boundaries.
template <int kCluster> DSA_DEVICE TopkRow slice_of(const TopkRow& row, int rank) {
  const int groups = (row.last - row.aligned + kGroup - 1) / kGroup;
  const int columns = (groups + kCluster - 1) / kCluster * kGroup;
  TopkRow slice = row;
  slice.aligned = min(row.aligned + rank * columns, row.last);
  slice.first = max(row.first, slice.aligned);
  slice.last = min(slice.aligned + columns, row.last);
  return slice;
}

/// Where a slice writes.
struct Slots {
  int first;                                     ///< of this slice
  int written;                                   ///< by all
};

/// All slices' s.taken[0 .. kThreads / 32), which group.sync() has made complete; taken[w] of the CTA with rank r is how many
/// columns its warp w writes. Each warp for itself.
///
/// What shall be true of it: `first` is the sum over the CTAs before this one, `written` the sum over all. A lane loads once,
/// 16 bytes: four counts of one CTA. At most 8 CTAs of 16 warps have 32 times four counts; s.taken is aligned to 16 bytes.
/// ptx::map_to_cluster(pointer, r) points to the same place in the smem of CTA r.
template <int kThreads, int kCluster> DSA_DEVICE Slots slots_of(SharedStorage& s, int rank) {
  static_assert(kThreads % 128 == 0 && kThreads / 128 * kCluster <= 32 && offsetof(ResidentStorage, taken) % 16 == 0);
  // ---- your code: about 8 lines -------------------------------------------------------------------------------
  (void)s, (void)rank;
  return {0, 0};
  // ---- end of your code ---------------------------------------------------------------------------------------
}

/// [T3] for a class that is not large: own members are marked and counted in `taken`. Everybody knows how many members of
/// the slices before this one are chosen, so nothing needs to be sent once more. Begins and ends with a barrier.
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
}

static const char* unsupported(const TopkArgs& a) {
  if (a.rows > 0x7fffffff / 8) return "rows must be below 2^28 (a grid of 8 CTAs per row)";
  return topk_row_unsupported(a);
}

/// @param min_slice  columns below which a slice is not worth the barriers
static int cluster_size(int rows, int n, int sms, int min_slice) {
  int ctas = 1;
  while (ctas < 8 && n / ctas > 32768) ctas *= 2;
  while (ctas < 8 && int64_t(rows) * ctas * 2 <= sms && n / (2 * ctas) >= min_slice) ctas *= 2;
  return ctas;
}

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
  if (!fit_on_sm(bytes, 7)) return with(kernel<256, 3, 8, kCluster>, 256);
  return with(kernel<128, 7, 4, kCluster>, 128);
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
    "ex_one_load", "exercise: where a slice begins, with one load per lane", Accuracy::kExact, Repeatable::kYes};

}  // namespace ex_one_load

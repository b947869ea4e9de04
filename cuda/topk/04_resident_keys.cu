/// @file 04_resident_keys.cu
/// Top-k selector, rung 4: one read of the row.
///
/// | before        | 03_wide_digit.cu: two reads, because the row does not fit on the chip                           |
/// |---------------|------------------------------------------------------------------------------------------------|
/// | **this rung** | as 16-bit keys it does fit: everything after the read happens in shared memory                   |
/// | next          | 05_clusters.cu: several CTAs per row, for long rows and for few                                  |
/// | reference     | reference/topk.cpp                                                                              |
/// | chapter       | @ref topk_04                                                                                    |
///
/// One CTA per row. The steps are in cuda/common/topk_resident.cuh:
///
///     [T1] read the row; keep the 16-bit keys; histogram of their highest 11 bits                the only read
///     [T2] the bin of the k-th largest; histogram of the 5 low bits inside it: the class of the threshold
///     [T3] each warp counts its columns above the class; the members of the class are collected and fetched as fp32
///     [T4] the members are ranked, all against all; in smem they become "chosen" or "never selected"
///     [T5] each warp writes its selected columns behind those of the warps before it
///
/// Everything is counted before it is written, so the output is in column order and repeats bit by bit; of a tie it has the
/// lowest columns. The deterministic mode costs nothing more.
///
/// A class of more than 512 members (equal values, say) is searched by radix select instead of [T4]. Keys of a row that is
/// longer than shared memory are made again from the logits in [T2], [T3] and [T5] where they do not fit.
///
/// Shared memory  9.5 KiB + 2 B per column: 73.5 KiB for 32768 columns, 3 CTAs per SM; up to 111000 columns in 227 KiB.
#include "../common/register.cuh"
#include "../common/topk_resident.cuh"
#include "../device/trace.cuh"

namespace dsa::topk_04 {

struct alignas(16) SharedStorage : ResidentStorage {};   ///< the keys follow

template <int kThreads, int kCtas>
static __global__ void __launch_bounds__(kThreads, kCtas) kernel(const TopkArgs a, int capacity) {
  SharedStorage& s = shared_memory<SharedStorage>();
  const TopkRow row = topk_row(a, blockIdx.x);
  const ResidentKeys<kThreads> keys{row, reinterpret_cast<uint4*>(&s + 1), capacity};
  const int t = threadIdx.x;
  const ThisCta group;

  trace_step("[T1] read");
  read_keys(s, keys);
  __syncthreads();
  trace_step("[T2] class");
  const Cut cut = find_cut(s, keys, group);
  trace_step("[T3] count");
  count_and_collect(s, keys, cut);
  __syncthreads();

  // [decide]
  trace_step("[T4] rank");
  if (cut.population > kMembers) {
    decide_large_class(s, keys, cut, group);
  } else {
    for (int i = t; i < cut.population; i += kThreads) {
      const uint64_t mine = s.member[i];
      const int rank = rank_among(s.member, cut.population, mine);
      mark(s, keys, column_of(mine), rank < cut.wanted);
      if (rank == cut.wanted - 1) s.pivot = mine;
    }
  }
  __syncthreads();
  // [decide]

  trace_step("[T5] write");
  write_selected(s, keys, cut, 0);
  int written = 0;
  for (int warp = 0; warp < kThreads / 32; ++warp) written += s.taken[warp];
  fill_rest<kThreads>(row, written);
}

static const char* unsupported(const TopkArgs& a) { return topk_row_unsupported(a); }

static cudaError_t launch(const TopkArgs& a, cudaStream_t stream) {
  if (a.rows == 0 || a.topk == 0) return cudaSuccess;
  const int most = int((kMaxSharedMemory - sizeof(SharedStorage)) / sizeof(uint4));
  const int capacity = min(a.n / kGroup + 2, most);      // a row has up to 3 columns before its first
  const std::size_t bytes = sizeof(SharedStorage) + std::size_t(capacity) * sizeof(uint4);
  // A CTA that is alone on its SM takes all the threads.
  if (bytes > kMaxSharedMemory / 2 - 1024 || a.rows <= sm_count())
    return dsa::launch(kernel<1024, 1>, {dim3(unsigned(a.rows)), dim3(1024), bytes, stream}, a, capacity);
  return dsa::launch(kernel<384, 3>, {dim3(unsigned(a.rows)), dim3(384), bytes, stream}, a, capacity);
}

static const Register<TopkArgs, unsupported, launch> registered{
    "04_resident_keys", "one read: 16-bit keys of the row stay in smem", Accuracy::kExact, Repeatable::kYes};

}  // namespace dsa::topk_04

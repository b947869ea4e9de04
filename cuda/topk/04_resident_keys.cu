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
///     [T1] read the row; keep its keys, fp16, two per conversion; histogram of their highest 11 bits   the only read
///     [T2] the bin of the k-th largest; one scan of the keys: each warp counts its columns above the bin, the columns in
///          the bin are candidates; the class of the threshold among them; its members are fetched as fp32
///     [T3] the members are ranked, all against all; in smem those not chosen become NaN
///     [T4] each warp writes its selected columns behind those of the warps before it
///
/// Everything is counted before it is written, so the output is in column order and repeats bit by bit; of a tie it has the
/// lowest columns. The deterministic mode costs nothing more.
///
/// A bin of more than 512 columns is scanned again for its class; a class of more than 512 members (equal values, say) is
/// searched by radix select instead of [T3]. Keys of a row that is longer than shared memory are made again from the logits
/// in [T2] to [T4] where they do not fit.
///
/// After [T1] a CTA asks L2 for the row that comes after it in its place on the chip, since nothing is read in [T2] to [T4].
///
/// Shared memory  10.5 KiB + 2 B per column: 74.6 KiB for 32768 columns, 3 CTAs per SM; up to 110000 columns in 227 KiB.
/// Barriers       6 per row, of one CTA; 8 CTAs of 128 threads per SM for short rows, so that somebody else has work.
/// Expected       us for 4096 x 32768, 4096 x 8192, 4096 x 4096, 1024 x 131072, 64 x 32768, 1 x 131072, as predicted before
///                each form was measured:
///                first form (integer keys, 9 barriers)   170-215 | 42-55 | 30-40 | 230-280 | 9-12 | 22-28
///                second (fp16 keys, 6 barriers)          160     | 53    | 38    | 400     | 13   | 45
///                third (the next row in L2)              194     | 63    | 41.5  | 333     | 10.7 | 34 (from a variant)
#include "../common/register.cuh"
#include "../common/topk_resident.cuh"
#include "../device/trace.cuh"

namespace dsa::topk_04 {

struct alignas(16) SharedStorage : ResidentStorage {};   ///< the keys follow

/// @param ahead  CTAs that the chip holds: the row so much further on begins when this one ends. A hint: any number is right.
template <int kThreads, int kCtas, int kLoads>
static __global__ void __launch_bounds__(kThreads, kCtas) kernel(const TopkArgs a, int capacity, int ahead) {
  SharedStorage& s = shared_memory<SharedStorage>();
  const TopkRow row = topk_row(a, blockIdx.x);
  const ResidentKeys<kThreads> keys{row, reinterpret_cast<uint4*>(&s + 1), capacity};
  const ThisCta group;

  trace_step("[T1] read");
  read_keys<kThreads, kLoads>(s, keys);
  __syncthreads();
  if (kThreads < 1024 && threadIdx.x == 0) prefetch(row_ahead(a, int64_t(blockIdx.x) + ahead));
  trace_step("[T2] class");
  sum_blocks<kThreads>(s);
  __syncthreads();
  const Cut cut = find_cut(s, keys, group);
  __syncthreads();

  trace_step("[T3] rank");
  decide_class(s, keys, cut);

  trace_step("[T4] write");
  write_selected(s, keys, cut, s.taken, 0);
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
  return with_resident_threads(bytes, a.rows, [&]<int kThreads, int kCtas, int kLoads>() {
    const LaunchConfig config{dim3(unsigned(a.rows)), dim3(kThreads), bytes, stream};
    return dsa::launch(kernel<kThreads, kCtas, kLoads>, config, a, capacity, kCtas * sm_count());
  });
}

static const Register<TopkArgs, unsupported, launch> registered{
    "04_resident_keys", "one read: 16-bit keys of the row stay in smem", Accuracy::kExact, Repeatable::kYes};

}  // namespace dsa::topk_04

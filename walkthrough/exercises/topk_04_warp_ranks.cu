/// @file topk_04_warp_ranks.cu
/// Exercise: a warp ranks a member of the class at a time. About 10 lines are missing.
///
///     mkdir ~/my_kernels && cp walkthrough/exercises/topk_04_warp_ranks.cu ~/my_kernels/
///     cmake -B build -DDSA_USER_KERNELS=$HOME/my_kernels && cmake --build build
///     build/bin/dsa check --stage topk --step ex_warp_ranks --device emulator
///
/// The chapter (walkthrough/topk/04_resident_keys.md) has the solution.
#include "cuda/common/register.cuh"
#include "cuda/common/topk_resident.cuh"
#include "cuda/device/trace.cuh"

namespace ex_warp_ranks {

using namespace dsa;

struct alignas(16) SharedStorage : ResidentStorage {};   ///< the keys follow

/// [T3] A warp ranks one member of an open class at a time: its 32 lanes look at 32 other members together.
///
/// What shall be true of it: each of the cut.population entries of s.member has been marked once, by one lane:
/// mark(s.taken, k, column_of(member), chosen). Chosen are the cut.wanted largest; no two members are equal. The smallest of
/// the chosen ones is in s.pivot. __ballot_sync says which lanes found something larger; __popc counts.
template <int kThreads>
DSA_DEVICE void rank_members(ResidentStorage& s, const ResidentKeys<kThreads>& k, const Cut& cut) {
  constexpr int kWarps = kThreads / 32;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  // ---- your code: about 10 lines ------------------------------------------------------------------------------
  // As it stands, nobody is chosen.
  for (int i = kWarps * lane + warp; i < cut.population; i += kThreads) mark(s.taken, k, column_of(s.member[i]), false);
  if (threadIdx.x == 0) s.pivot = ~uint64_t(0);
  // ---- end of your code ---------------------------------------------------------------------------------------
}

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
  if (cut.large) {
    decide_large_class(s, keys, cut, group);
    __syncthreads();
  } else if (cut.open) {
    rank_members(s, keys, cut);
    __syncthreads();
  }

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
  const int sms = sm_count();
  const auto with = [&](auto* kernel, int threads, int ctas) {
    return dsa::launch(kernel, {dim3(unsigned(a.rows)), dim3(unsigned(threads)), bytes, stream}, a, capacity, ctas * sms);
  };
  // A CTA that is alone on its SM takes all the threads.
  if (!fit_on_sm(bytes, 2) || a.rows <= sms) return with(kernel<1024, 1, 4>, 1024, 1);
  if (!fit_on_sm(bytes, 3)) return with(kernel<512, 2, 4>, 512, 2);
  if (!fit_on_sm(bytes, 8)) return with(kernel<256, 3, 8>, 256, 3);
  return with(kernel<128, 8, 4>, 128, 8);
}

static const Register<TopkArgs, unsupported, launch> registered{
    "ex_warp_ranks", "exercise: a warp ranks a member at a time", Accuracy::kExact, Repeatable::kYes};

}  // namespace ex_warp_ranks

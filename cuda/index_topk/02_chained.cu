/// @file 02_chained.cu
/// Index and top-k, rung 2: no score that nobody needs, and no gap between the two kernels.
///
/// | before        | 01_naive.cu: every window is scored, and each kernel waits until the one before it has gone         |
/// |---------------|-----------------------------------------------------------------------------------------------------|
/// | **this rung** | windows of at most topk columns are not scored; the selector begins with them while the scorer ends |
/// | next          | your own: walkthrough/your_kernel                                                                   |
/// | reference     | reference/index_topk.cpp                                                                            |
/// | chapter       | @ref index_topk_02                                                                                  |
///
///     for each chunk of queries, a grid and one that may overlap its end:
///
///     score: the roles of indexer 09, 1 CTA per SM       select: a CTA per query, the steps of top-k 04
///     ----------------------------------------------     --------------------------------------------------
///     [X1] select may begin where there is room          [X3] a window of at most topk columns: all of them
///     [X2] logits of longer windows                      [X4] else wait until score is complete
///                                                        [X5] read, as keys    [X6] class of the threshold
///                                                        [X7] rank its members [X8] write
///
/// Order     score is complete before select reads, by [X4], and select before the next score, which does not overlap. A select
///           that never waits has short windows only, and score wrote nothing.
/// Memory    as in rung 1: [chunk, s_kv] float32, at most kLogitsScratchBytes = 512 MiB unless one row is longer.
/// Smem      score 149 KiB, select 10.5 KiB + 2 B per column, as the kernels they are made of.
/// Expected  us, of 159 | 539 | 1829 in rung 1: 4096 causal has 25 % fewer logits, 8192 6 %, the suffix next to none; that is
///           31 | 27 | 0 less for score. Two launches fewer are 5 less. 118 | 500 | 1822.
/// Measured  in a burst: 115 | 486 | 1827, of 164 | 538 | 1831.
#include "../common/index_topk_chunk.cuh"
#include "../common/indexer_lean.cuh"
#include "../common/register.cuh"
#include "../common/topk_resident.cuh"
#include "../device/trace.cuh"

namespace dsa::index_topk_02 {

// ---- Score ------------------------------------------------------------------------------------------------------------
// [score]
template <class Shape>
static __global__ void __launch_bounds__(kScoringThreads, 1)
    score(const IndexerArgs a, const __grid_constant__ IndexerMaps maps, const Pieces pieces) {
  ptx::griddepcontrol_launch_dependents();           // [X1]
  score_pieces<Shape>(a, maps, pieces);              // [X2]
}
// [score]

// ---- Select -----------------------------------------------------------------------------------------------------------
struct alignas(16) SharedStorage : ResidentStorage {};   ///< the keys follow

/// @param ahead  CTAs that the chip holds: the row so much further on begins when this one ends. A hint: any number is right.
// [select]
template <int kThreads, int kCtas, int kLoads>
static __global__ void __launch_bounds__(kThreads, kCtas) select(const TopkArgs a, int capacity, int ahead) {
  SharedStorage& s = shared_memory<SharedStorage>();
  const TopkRow row = topk_row(a, blockIdx.x);
  const int columns = row.last - row.first;
  if (columns <= row.k) {
    trace_step("[X3] all columns");
    for (int slot = threadIdx.x; slot < row.k; slot += kThreads) row.indices[slot] = slot < columns ? row.first + slot : kInvalid;
    return;
  }
  trace_step("[X4] wait");
  ptx::griddepcontrol_wait();
  // [select]

  trace_step("[X5] read");
  const ResidentKeys<kThreads> keys{row, reinterpret_cast<uint4*>(&s + 1), capacity};
  const ThisCta group;
  read_keys<kThreads, kLoads>(s, keys);
  __syncthreads();
  if (kThreads < 1024 && threadIdx.x == 0) prefetch(row_ahead(a, int64_t(blockIdx.x) + ahead));
  trace_step("[X6] class");
  sum_blocks<kThreads>(s);
  __syncthreads();
  const Cut cut = find_cut(s, keys, group);
  __syncthreads();

  trace_step("[X7] rank");
  decide_class(s, keys, cut);

  trace_step("[X8] write");
  write_selected(s, keys, cut, s.taken, 0);
  int written = 0;
  for (int warp = 0; warp < kThreads / 32; ++warp) written += s.taken[warp];
  fill_rest<kThreads>(row, written);
}

static cudaError_t launch_select(const TopkArgs& a, cudaStream_t stream) {
  const int most = int((kMaxSharedMemory - sizeof(SharedStorage)) / sizeof(uint4));
  const int capacity = min(a.n / kGroup + 2, most);      // a row has up to 3 columns before its first
  const std::size_t bytes = sizeof(SharedStorage) + std::size_t(capacity) * sizeof(uint4);
  return with_resident_threads(bytes, a.rows, [&]<int kThreads, int kCtas, int kLoads>() {
    LaunchConfig config{dim3(unsigned(a.rows)), dim3(kThreads), bytes, stream};
    config.overlap = true;
    return dsa::launch(select<kThreads, kCtas, kLoads>, config, a, capacity, kCtas * sm_count());
  });
}

// ---- Both ---------------------------------------------------------------------------------------------------------------
static const char* unsupported(const IndexTopkArgs& a) {
  if (const char* why = scoring_unsupported(scoring(a, 0, a.chunk))) return why;
  return topk_row_unsupported(selection(a, 0, a.chunk));
}

static cudaError_t launch(const IndexTopkArgs& a, cudaStream_t stream) {
  if (a.s_q == 0 || a.topk == 0) return cudaSuccess;
  for (int first = 0; first < a.s_q; first += a.chunk) {
    const int count = min(a.chunk, a.s_q - first);
    if (a.s_kv > a.topk) {                           // else every window is short
      const IndexerArgs queries = scoring(a, first, count);
      Pieces pieces = make_pieces(queries, sm_count());
      pieces.skip = a.topk;
      const auto kernel_for = [](auto shape) { return score<decltype(shape)>; };
      if (const cudaError_t error = launch_scoring(kernel_for, queries, pieces, stream)) return error;
    }
    if (const cudaError_t error = launch_select(selection(a, first, count), stream)) return error;
  }
  return cudaSuccess;
}

static const Register<IndexTopkArgs, unsupported, launch> registered{
    "02_chained", "short windows are not scored; the selector starts as the scorer ends", Accuracy::kFp8, Repeatable::kYes};

}  // namespace dsa::index_topk_02

/// @file 01_naive.cu
/// Index and top-k, rung 1: the best scorer and the best selector, one after the other, a chunk of queries at a time.
///
/// | before        |                                                                                                      |
/// |---------------|------------------------------------------------------------------------------------------------------|
/// | **this rung** | logits of a chunk to memory, then their columns; windows of at most topk columns are written last    |
/// | next          | 02_chained.cu: no scores for those windows, and no gap between the two kernels                       |
/// | reference     | reference/index_topk.cpp                                                                             |
/// | chapter       | @ref index_topk_01                                                                                   |
///
///     for each chunk of queries:   [X1] logits = indexer   [X2] indices = top-k of logits
///     at the end:                  [X3] windows of at most topk columns, whole
///
/// Memory  the scratch is [chunk, s_kv] float32, at most kLogitsScratchBytes = 512 MiB unless one row is longer.
#include "../common/index_topk_chunk.cuh"
#include "../common/register.cuh"
#include "../device/trace.cuh"

namespace dsa::index_topk_01 {

constexpr int kThreads = 256;
constexpr const char* kScorer = "09_lean_epilogue";
constexpr const char* kSelector = "04_resident_keys";

/// [X3] A CTA per query. What top-k wrote there, of whatever logits, is overwritten.
// [whole]
static __global__ void __launch_bounds__(kThreads) whole_windows(const IndexTopkArgs a) {
  trace_step("[X3] whole windows");
  const int begin = min(max(a.ks[blockIdx.x], 0), a.s_kv), end = max(begin, min(max(a.ke[blockIdx.x], 0), a.s_kv));
  if (end - begin > a.topk) return;
  int32_t* indices = a.indices + int64_t(blockIdx.x) * a.topk;
  for (int slot = threadIdx.x; slot < a.topk; slot += kThreads) indices[slot] = slot < end - begin ? begin + slot : kInvalid;
}
// [whole]

static const char* unsupported(const IndexTopkArgs& a) {
  const RungEntry *scorer = find_rung(Stage::kIndexer, kThisDevice, kScorer),
                  *selector = find_rung(Stage::kTopk, kThisDevice, kSelector);
  if (!scorer || !selector) return "needs the steps 09_lean_epilogue of indexer and 04_resident_keys of topk";
  if (const char* why = scorer->unsupported(scoring(a, 0, a.chunk))) return why;
  return selector->unsupported(selection(a, 0, a.chunk));
}

static cudaError_t launch(const IndexTopkArgs& a, cudaStream_t stream) {
  if (a.s_q == 0) return cudaSuccess;
  const RungEntry& scorer = *find_rung(Stage::kIndexer, kThisDevice, kScorer);
  const RungEntry& selector = *find_rung(Stage::kTopk, kThisDevice, kSelector);
  for (int first = 0; first < a.s_q; first += a.chunk) {
    const int count = min(a.chunk, a.s_q - first);
    int error = scorer.launch(scoring(a, first, count), stream);
    if (error == 0) error = selector.launch(selection(a, first, count), stream);
    if (error != 0) return cudaError_t(error);
  }
  return dsa::launch(whole_windows, {dim3(unsigned(a.s_q)), dim3(kThreads), 0, stream}, a);
}

static const Register<IndexTopkArgs, unsupported, launch> registered{
    "01_naive", "indexer 09 and top-k 04 after one another", Accuracy::kFp8, Repeatable::kYes};

}  // namespace dsa::index_topk_01

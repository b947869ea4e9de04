/// @file indexer_clean.cuh
/// -inf for the columns that a query does not see, the clean mode, as a second kernel.
#pragma once

#include "indexer_tile.cuh"

namespace dsa {

constexpr int kCleanThreads = 128;

/// A warp per row.
// [clean]
static __global__ void __launch_bounds__(kCleanThreads) clean_kernel(const IndexerArgs a) {
  const int64_t query = int64_t(blockIdx.x) * (kCleanThreads / 32) + threadIdx.x / 32;
  if (query >= a.s_q) return;
  const int lane = threadIdx.x % 32;
  Window w = window_of(a, query);
  if (w.end <= w.begin) w = {0, 0};
  float* row = a.logits + query * a.logits_stride;
  fill_outside(row, 0, w.begin, lane);
  fill_outside(row, w.end, a.s_kv, lane);
}
// [clean]

/// For kernels that store whatever they have computed: the second kernel of the clean mode.
static inline cudaError_t launch_clean(const IndexerArgs& a, cudaStream_t stream) {
  if (!a.clean || a.s_q == 0) return cudaSuccess;
  const unsigned ctas = (unsigned(a.s_q) + kCleanThreads / 32 - 1) / (kCleanThreads / 32);
  return dsa::launch(clean_kernel, {dim3(ctas), dim3(kCleanThreads), 0, stream}, a);
}

}  // namespace dsa

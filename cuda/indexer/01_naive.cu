/// @file 01_naive.cu
/// Lightning indexer, rung 1: one thread per logit, straight from global memory.
///
/// | before        | reference/indexer.cpp: the same formula in float64                   |
/// |---------------|---------------------------------------------------------------------|
/// | **this rung** | thread (i, j) computes logit[i, j]; nothing is shared, nothing is reused by hand |
/// | next          | 02: tiles in shared memory                                          |
/// | chapter       | @ref indexer_01                                                     |
///
///     logit[i, j] = k_scale[j] * sum_h weights[i, h] * max(q[i, h] . k[j], 0)      for ks[i] <= j < ke[i]
///
/// Shared memory  none. A thread reads its key once per head, h_i * d_i bytes in all, and counts on L1 for the
/// reuse: the 128 B of a key stay there while the heads go by, and q[i] is the same address for a whole warp.
#include "../common/register.cuh"

namespace dsa::indexer_01 {

constexpr int kThreads = 128;                    ///< columns of one CTA

static __global__ void __launch_bounds__(kThreads) kernel(const IndexerArgs a) {
  const int tiles = (a.s_kv + kThreads - 1) / kThreads;
  const int row = int(blockIdx.x / unsigned(tiles));
  const int column = int(blockIdx.x % unsigned(tiles)) * kThreads + int(threadIdx.x);
  if (column >= a.s_kv) return;
  float* logit = a.logits + row * a.logits_stride + column;

  // [window]
  // Clamping matters only for the promise that no key outside [0, s_kv) is read, and `column` already is inside.
  if (column < a.ks[row] || column >= a.ke[row]) {
    if (a.clean) *logit = -INFINITY;
    return;
  // [window]
  }

  // [dot_products]
  const e4m3* k = a.k + int64_t(column) * a.d_i;
  const e4m3* q = a.q + int64_t(row) * a.h_i * a.d_i;
  const float* weights = a.weights + int64_t(row) * a.h_i;
  float sum = 0;
  for (int h = 0; h < a.h_i; ++h) {
    float dot = 0;
    for (int d = 0; d < a.d_i; d += 4) {
      const float4 x = load4(q + int64_t(h) * a.d_i + d), y = load4(k + d);
      dot += x.x * y.x + x.y * y.y + x.z * y.z + x.w * y.w;
    }
    sum += weights[h] * fmaxf(dot, 0.0f);        // ReLU per head, before the weight, whose sign is free
  }
  *logit = sum * a.k_scale[column];
  // [dot_products]
}

static const char* unsupported(const IndexerArgs& a) {
  if (a.d_i % 4) return "d_i must be a multiple of 4 (four e4m3 values per load)";
  if (int64_t(a.s_q) * ((a.s_kv + kThreads - 1) / kThreads) > 0x7fffffff)
    return "s_q * ceil(s_kv / 128) must be below 2^31 (one CTA each)";
  return nullptr;
}

static cudaError_t launch(const IndexerArgs& a, cudaStream_t stream) {
  const int64_t ctas = int64_t(a.s_q) * ((a.s_kv + kThreads - 1) / kThreads);
  if (ctas == 0) return cudaSuccess;
  return dsa::launch(kernel, {dim3(unsigned(ctas)), dim3(kThreads), 0, stream}, a);
}

static const Register<IndexerArgs, unsupported, launch> registered{
    "01_naive", "one thread per logit, no shared memory", Accuracy::kF32, Repeatable::kYes};

}  // namespace dsa::indexer_01

/// @file indexer_01_four_keys.cu
/// Exercise: four keys per thread, so that every piece of q is loaded and converted once for four logits.
/// About 12 lines are missing.
///
///     mkdir ~/my_kernels && cp walkthrough/exercises/indexer_01_four_keys.cu ~/my_kernels/
///     cmake -B build -DDSA_USER_KERNELS=$HOME/my_kernels && cmake --build build
///     build/bin/dsa check --stage indexer --step ex_four_keys --device emulator
///
/// The chapter (walkthrough/indexer/01_naive.md) has the solution.
#include "cuda/common/register.cuh"

namespace ex_four_keys {

using namespace dsa;

constexpr int kThreads = 128;
constexpr int kKeys = 4;                         // of one thread: columns t, t + 128, t + 256, t + 384 of the tile
constexpr int kTile = kThreads * kKeys;

static __global__ void __launch_bounds__(kThreads) kernel(const IndexerArgs a) {
  const int tiles = (a.s_kv + kTile - 1) / kTile;
  const int row = int(blockIdx.x / unsigned(tiles));
  const int first = int(blockIdx.x % unsigned(tiles)) * kTile + int(threadIdx.x);
  [[maybe_unused]] const e4m3* q = a.q + int64_t(row) * a.h_i * a.d_i;
  [[maybe_unused]] const float* weights = a.weights + int64_t(row) * a.h_i;

  // A column outside the window gets a harmless key: row 0 exists, because there is a column. It is not stored.
  bool inside[kKeys];
  [[maybe_unused]] const e4m3* k[kKeys];
  for (int n = 0; n < kKeys; ++n) {
    const int column = first + n * kThreads;
    inside[n] = column < a.s_kv && column >= a.ks[row] && column < a.ke[row];
    k[n] = a.k + (inside[n] ? int64_t(column) * a.d_i : 0);
  }

  float sum[kKeys] = {};
  for (int h = 0; h < a.h_i; ++h) {
    // ---- your code: about 12 lines ----------------------------------------------------------------------------
    // Per head: four dot products at once. Load four values of q (load4), then for each key its four values, and
    // multiply. After the last column: ReLU, weight, and add to sum[n].
    // ---- end of your code -------------------------------------------------------------------------------------
  }

  for (int n = 0; n < kKeys; ++n) {
    const int column = first + n * kThreads;
    if (column >= a.s_kv) continue;
    float* logit = a.logits + row * a.logits_stride + column;
    if (inside[n]) *logit = sum[n] * a.k_scale[column];
    else if (a.clean) *logit = -INFINITY;
  }
}

static const char* unsupported(const IndexerArgs& a) {
  if (a.d_i % 4) return "d_i must be a multiple of 4 (four e4m3 values per load)";
  if (int64_t(a.s_q) * ((a.s_kv + kTile - 1) / kTile) > 0x7fffffff)
    return "s_q * ceil(s_kv / 512) must be below 2^31 (one CTA each)";
  return nullptr;
}

static cudaError_t launch(const IndexerArgs& a, cudaStream_t stream) {
  const int64_t ctas = int64_t(a.s_q) * ((a.s_kv + kTile - 1) / kTile);
  if (ctas == 0) return cudaSuccess;
  return dsa::launch(kernel, {dim3(unsigned(ctas)), dim3(kThreads), 0, stream}, a);
}

static const Register<IndexerArgs, unsupported, launch> registered{
    "ex_four_keys", "exercise: one thread per four logits", Accuracy::kF32, Repeatable::kYes};

}  // namespace ex_four_keys

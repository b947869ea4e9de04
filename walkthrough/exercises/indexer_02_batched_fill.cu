/// @file indexer_02_batched_fill.cu
/// Exercise: [T1] of rung 2 with many loads on their way at once, where the rung waits for each before it makes the next.
/// About 15 lines are missing.
///
///     mkdir ~/my_kernels && cp walkthrough/exercises/indexer_02_batched_fill.cu ~/my_kernels/
///     cmake -B build -DDSA_USER_KERNELS=$HOME/my_kernels && cmake --build build
///     build/bin/dsa check --stage indexer --step ex_batched_fill --device emulator
///
/// The chapter (walkthrough/indexer/02_shared_tile.md) has the solution.
#include "cuda/common/indexer_tile.cuh"
#include "cuda/common/register.cuh"
#include "cuda/device/trace.cuh"

namespace ex_batched_fill {

using namespace dsa;

constexpr int kThreads = 128;
constexpr int kRows = 64;                            // (query, head) pairs of the tile
constexpr int kKeys = 128;
constexpr int kBlocking = 8;                         // rows, and keys, of a thread
constexpr int kRowLanes = kRows / kBlocking;         // threads that share a key
constexpr int kKeyLanes = kKeys / kBlocking;         // threads that share a row
constexpr int kBatch = 16;                           // loads of a thread that are on their way together

template <class Shape> struct SharedStorage {
  float q[kRows][Shape::kDim + 4];
  float k[kKeys][Shape::kDim + 4];
};

/// The four e4m3 values of a word.
DSA_DEVICE float4 widen(uint32_t word) {
  return make_float4(float_from(e4m3{uint8_t(word)}), float_from(e4m3{uint8_t(word >> 8)}),
                     float_from(e4m3{uint8_t(word >> 16)}), float_from(e4m3{uint8_t(word >> 24)}));
}

/// [T1] Rows past the last are zeros; they are not read.
template <class Shape, int kTileRows>
DSA_DEVICE void fill(float (&tile)[kTileRows][Shape::kDim + 4], const e4m3* from, int64_t first_row, int64_t rows) {
  constexpr int kQuads = Shape::kDim / 4;            // words of a row
  constexpr int kWords = kTileRows * kQuads;         // of the tile; word w is tile[w / kQuads][w % kQuads * 4] and on
  // ---- your code: about 15 lines ------------------------------------------------------------------------------
  // In batches of kBatch words per thread, neighbours to neighbouring threads:
  // 1. load all words of the batch into an array, 0 for rows that do not exist;
  // 2. then widen and store them.
  // Both loops must be unrolled, or the array has no registers.
  (void)tile, (void)from, (void)first_row, (void)rows, (void)kWords;
  // ---- end of your code ---------------------------------------------------------------------------------------
}

/// [T2]
template <class Shape>
DSA_DEVICE void dot_products(const SharedStorage<Shape>& s, int row_lane, int key_lane, float (&dot)[kBlocking][kBlocking]) {
#pragma unroll 1
  for (int d = 0; d < Shape::kDim; d += 4) {
    float4 q[kBlocking];
#pragma unroll
    for (int i = 0; i < kBlocking; ++i) q[i] = *reinterpret_cast<const float4*>(&s.q[row_lane + kRowLanes * i][d]);
#pragma unroll
    for (int j = 0; j < kBlocking; ++j) {
      const float4 k = *reinterpret_cast<const float4*>(&s.k[key_lane + kKeyLanes * j][d]);
#pragma unroll
      for (int i = 0; i < kBlocking; ++i) {
        dot[i][j] += q[i].x * k.x;
        dot[i][j] += q[i].y * k.y;
        dot[i][j] += q[i].z * k.z;
        dot[i][j] += q[i].w * k.w;
      }
    }
  }
}

template <class Shape> static __global__ void __launch_bounds__(kThreads) kernel(const IndexerArgs a) {
  constexpr int kQueries = kRows / Shape::kHeads;
  SharedStorage<Shape>& s = shared_memory<SharedStorage<Shape>>();
  const unsigned tiles = (a.s_kv + kKeys - 1) / kKeys;
  const int first_key = int(blockIdx.x % tiles) * kKeys, query = int(blockIdx.x / tiles) * kQueries;
  const int row_lane = threadIdx.x % kRowLanes, key_lane = threadIdx.x / kRowLanes;

  Window window[kQueries];
  bool needed = false;
  for (int i = 0; i < kQueries; ++i) {
    window[i] = window_of(a, query + i);
    needed = needed || overlaps(window[i], first_key, first_key + kKeys);
  }
  if (!needed) {
    for (int i = 0; i < kQueries; ++i) store_logit(a, query + i, first_key + int(threadIdx.x), {0, 0}, 0);
    return;
  }

  fill<Shape>(s.q, a.q, int64_t(query) * Shape::kHeads, int64_t(a.s_q) * Shape::kHeads);
  fill<Shape>(s.k, a.k, first_key, a.s_kv);
  __syncthreads();

  float dot[kBlocking][kBlocking] = {};
  dot_products<Shape>(s, row_lane, key_lane, dot);

  constexpr int kRowsOfQuery = kBlocking / kQueries;
  for (int i = 0; i < kQueries; ++i) {
    if (query + i >= a.s_q) break;
    float weight[kRowsOfQuery];
    for (int r = 0; r < kRowsOfQuery; ++r)
      weight[r] = a.weights[int64_t(query + i) * Shape::kHeads + row_lane + kRowLanes * r];
#pragma unroll
    for (int j = 0; j < kBlocking; ++j) {
      float sum = 0;
#pragma unroll
      for (int r = 0; r < kRowsOfQuery; ++r) sum += weight[r] * fmaxf(dot[i * kRowsOfQuery + r][j], 0.0f);
      for (int distance = 1; distance < kRowLanes; distance *= 2) sum += __shfl_xor_sync(0xffffffffu, sum, distance);
      const int key = first_key + key_lane + kKeyLanes * j;
      if (row_lane == j && key < a.s_kv) store_logit(a, query + i, key, window[i], sum * a.k_scale[key]);
    }
  }
}

static int64_t cta_count(const IndexerArgs& a) {
  return (int64_t(a.s_q) * a.h_i + kRows - 1) / kRows * ((a.s_kv + kKeys - 1) / kKeys);
}

static const char* unsupported(const IndexerArgs& a) {
  if (const char* why = shape_unsupported(a)) return why;
  if (cta_count(a) > 0x7fffffff) return "ceil(s_q * h_i / 64) * ceil(s_kv / 128) must be below 2^31 (one CTA each)";
  return nullptr;
}

static cudaError_t launch(const IndexerArgs& a, cudaStream_t stream) {
  if (cta_count(a) == 0) return cudaSuccess;
  return with_indexer_shape(a, [&](auto shape) {
    using Shape = decltype(shape);
    return dsa::launch(kernel<Shape>, {dim3(unsigned(cta_count(a))), dim3(kThreads), sizeof(SharedStorage<Shape>), stream}, a);
  });
}

static const Register<IndexerArgs, unsupported, launch> registered{
    "ex_batched_fill", "exercise: tiles filled by many loads at once", Accuracy::kF32, Repeatable::kYes};

}  // namespace ex_batched_fill

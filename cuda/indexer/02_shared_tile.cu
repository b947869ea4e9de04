/// @file 02_shared_tile.cu
/// Lightning indexer, rung 2: a tile of q against a tile of keys, 64 products per thread in registers.
///
/// | before        | 01_naive.cu: every multiplication fetches both its factors                                      |
/// |---------------|--------------------------------------------------------------------------------------------------|
/// | **this rung** | 64 (query, head) rows x 128 keys in shared memory as float; 8 x 8 sums per thread                |
/// | next          | 03_heads_as_rows.cu: the same tile on the tensor cores                                           |
/// | reference     | reference/indexer.cpp                                                                            |
/// | chapter       | @ref indexer_02                                                                                  |
///
/// A CTA owns one tile: one query of 64 heads, or two of 32, against 128 keys.
///
///     [T1] 64 rows of q and 128 keys, converted to float once            all 128 threads
///     [T2] dot[r][k] += q[r][d] k[k][d]                                  8 x 8 per thread, 16 loads of 16 bytes per 256 FMA
///     [T3] ReLU, weight, sum over a thread's 8 heads, then 8 lanes       3 shuffles per key
///
///     thread t: rows t % 8, + 8, ... + 56;  keys t / 8, + 16, ... + 112. The 8 rows or 4 keys that a warp reads at once are
///     neighbours, 528 bytes apart: 16 bytes modulo 128, so they lie in different banks.
///
/// Expected       8192 clocks of FMA per tile; 8.65 M logits (4096 causal, in tiles) / 132 SMs / 128 x 8192 = 4.2 M clocks: 2.4
///                ms at the roof, 3.5 to 4 with the loads from shared memory and the filling, which only the other CTA hides.
/// Shared memory  q 33 KiB + k 66 KiB = 99 KiB of 227 KiB: 2 CTAs per SM.
/// Registers      64 sums + 8 float4 of q + 1 of k, of 255.
#include "../common/indexer_tile.cuh"
#include "../common/register.cuh"
#include "../device/trace.cuh"

namespace dsa::indexer_02 {

constexpr int kThreads = 128;
constexpr int kRows = 64;                            ///< (query, head) pairs of the tile
constexpr int kKeys = 128;
constexpr int kBlocking = 8;                         ///< rows, and keys, of a thread
constexpr int kRowLanes = kRows / kBlocking;         ///< threads that share a key
constexpr int kKeyLanes = kKeys / kBlocking;         ///< threads that share a row
static_assert(kRowLanes == kBlocking, "one of a key's threads stores each of their keys");

template <class Shape> struct SharedStorage {
  float q[kRows][Shape::kDim + 4];                   ///< 4 floats more: see above
  float k[kKeys][Shape::kDim + 4];
};

/// [T1] Rows past the last are zeros.
// [fill]
template <class Shape, int kTileRows>
DSA_DEVICE void fill(float (&tile)[kTileRows][Shape::kDim + 4], const e4m3* from, int64_t first_row, int64_t rows) {
  constexpr int kQuads = Shape::kDim / 4;
  for (int i = threadIdx.x; i < kTileRows * kQuads; i += kThreads) {
    const int row = i / kQuads, d = i % kQuads * 4;
    const bool valid = first_row + row < rows;
    *reinterpret_cast<float4*>(&tile[row][d]) =
        valid ? load4(from + (first_row + row) * Shape::kDim + d) : make_float4(0, 0, 0, 0);
  }
}
// [fill]

/// [T2]
// [dot_products]
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
      for (int i = 0; i < kBlocking; ++i) {          // four FMA; as one sum it would be five instructions
        dot[i][j] += q[i].x * k.x;
        dot[i][j] += q[i].y * k.y;
        dot[i][j] += q[i].z * k.z;
        dot[i][j] += q[i].w * k.w;
      }
    }
  }
}
// [dot_products]

template <class Shape> static __global__ void __launch_bounds__(kThreads) kernel(const IndexerArgs a) {
  constexpr int kQueries = kRows / Shape::kHeads;
  SharedStorage<Shape>& s = shared_memory<SharedStorage<Shape>>();
  const unsigned tiles = (a.s_kv + kKeys - 1) / kKeys;
  const int first_key = int(blockIdx.x % tiles) * kKeys, query = int(blockIdx.x / tiles) * kQueries;
  const int row_lane = threadIdx.x % kRowLanes, key_lane = threadIdx.x / kRowLanes;

  // [windows]
  Window window[kQueries];
  bool needed = false;
  for (int i = 0; i < kQueries; ++i) {
    window[i] = window_of(a, query + i);
    needed = needed || overlaps(window[i], first_key, first_key + kKeys);
  }
  if (!needed) {                                     // by nobody; the whole CTA leaves
    for (int i = 0; i < kQueries; ++i) store_logit(a, query + i, first_key + int(threadIdx.x), {0, 0}, 0);
    return;
  }
  // [windows]

  trace_step("[T1] fill");
  fill<Shape>(s.q, a.q, int64_t(query) * Shape::kHeads, int64_t(a.s_q) * Shape::kHeads);
  fill<Shape>(s.k, a.k, first_key, a.s_kv);
  __syncthreads();

  trace_step("[T2] dot products", 8192);
  float dot[kBlocking][kBlocking] = {};
  dot_products<Shape>(s, row_lane, key_lane, dot);

  // [epilogue]
  trace_step("[T3] heads", 300);
  constexpr int kRowsOfQuery = kBlocking / kQueries; // of a thread: row_lane + 8 i, so the queries follow each other
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
  // [epilogue]
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
    static_assert(sizeof(SharedStorage<Shape>) <= kMaxSharedMemory);
    return dsa::launch(kernel<Shape>, {dim3(unsigned(cta_count(a))), dim3(kThreads), sizeof(SharedStorage<Shape>), stream}, a);
  });
}

static const Register<IndexerArgs, unsupported, launch> registered{
    "02_shared_tile", "tiles in shared memory, 8 x 8 sums per thread", Accuracy::kF32, Repeatable::kYes};

}  // namespace dsa::indexer_02

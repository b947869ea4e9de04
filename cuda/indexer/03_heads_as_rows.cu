/// @file 03_heads_as_rows.cu
/// Lightning indexer, rung 3: FP8 tensor cores, heads as rows as the formula is written. The sum over heads then crosses threads.
///
/// | before        | 02_shared_tile.cu: FMA on the CUDA cores, at most 60 TFLOP/s                                     |
/// |---------------|--------------------------------------------------------------------------------------------------|
/// | **this rung** | m64n128k32 in e4m3; M = (query, head), N = keys                                                  |
/// | next          | 04_keys_as_rows.cu: M = keys, so that a thread holds most heads of a key                         |
/// | reference     | reference/indexer.cpp                                                                            |
/// | chapter       | @ref indexer_03                                                                                  |
///
/// A CTA is one warpgroup. It owns one query of 64 heads, or two of 32, and walks over 512 keys, 128 at a time.
///
///     [T1] 128 keys -> k                           cp.async, then wait
///     [T2] S = Q K^T, 64 rows x 128 keys           4 x m64n128k32 (d_i = 128)
///     [T3] ReLU, weight; sum over a warp's 16 rows 2 in the thread, then 8 lanes: 3 shuffles for each of 32 keys
///     [T4] sum over the warps of a query           through shared memory; key scale; store
///
///     thread of a warp:  2 rows (heads)  x  32 keys          A key's 64 heads lie in 4 warps x 8 lanes x 2 registers.
///
/// Expected       per tile 256 clocks of tensor cores, but 4 warps x 96 shuffles = 384 clocks of the shuffle unit, while wgmma
///                takes 3/4 of shared memory's bandwidth; 68 k tiles (4096 causal) / 132 SMs x ~1000 = 0.51 M clocks: 0.3 ms.
/// Shared memory  q 8 KiB + k 16 KiB + sums 2 KiB = 26 KiB of 227 KiB: 4 CTAs per SM, by registers.
/// Registers      S 64 + addresses, of 128.
#include "../common/indexer_tile.cuh"
#include "../common/register.cuh"
#include "../device/trace.cuh"

namespace dsa::indexer_03 {

constexpr int kThreads = 128;
constexpr int kRows = 64;                            ///< (query, head) pairs: M
constexpr int kKeys = 128;                           ///< of a tile: N
constexpr int kChunk = 512;                          ///< keys of a CTA

template <class Shape> struct SharedStorage {
  alignas(1024) e4m3 q[kRows * Shape::kDim];
  alignas(1024) e4m3 k[kKeys * Shape::kDim];
  float sum[4][kKeys];                               ///< over the 16 rows of a warp
};

/// [T3] d[4 j + 2 h + i] is row 16 w + 8 h + t % 32 / 4, key 8 j + 2 (t % 4) + i.
// [sum_rows]
DSA_DEVICE void sum_rows(const float (&d)[64], const float (&weight)[2], float (&sum)[kKeys], int lane) {
#pragma unroll
  for (int j = 0; j < 16; ++j) {
    float2 both;                                     // keys 8 j + 2 q and the next
    both.x = weight[0] * fmaxf(d[4 * j], 0.0f) + weight[1] * fmaxf(d[4 * j + 2], 0.0f);
    both.y = weight[0] * fmaxf(d[4 * j + 1], 0.0f) + weight[1] * fmaxf(d[4 * j + 3], 0.0f);
#pragma unroll
    for (int distance = 4; distance < 32; distance *= 2) {
      both.x += __shfl_xor_sync(0xffffffffu, both.x, distance);
      both.y += __shfl_xor_sync(0xffffffffu, both.y, distance);
    }
    if (lane < 4) *reinterpret_cast<float2*>(&sum[8 * j + 2 * lane]) = both;
  }
}
// [sum_rows]

template <class Shape> static __global__ void __launch_bounds__(kThreads, 4) kernel(const IndexerArgs a) {
  constexpr int kQueries = kRows / Shape::kHeads, kWarps = 4 / kQueries;   // warps of a query
  SharedStorage<Shape>& s = shared_memory<SharedStorage<Shape>>();
  const int t = threadIdx.x, warp = t / 32, lane = t % 32;
  const unsigned chunks = (a.s_kv + kChunk - 1) / kChunk;
  const int chunk = int(blockIdx.x % chunks) * kChunk, query = int(blockIdx.x / chunks) * kQueries;
  const int64_t first_row = int64_t(query) * Shape::kHeads, rows = int64_t(a.s_q) * Shape::kHeads;

  copy_rows<Shape, kRows, kThreads>(s.q, a.q, first_row, rows, t);
  float weight[2];
  for (int h = 0; h < 2; ++h) {
    const int64_t row = first_row + 16 * warp + 8 * h + lane / 4;
    weight[h] = row < rows ? a.weights[row] : 0;
  }
  Window window[kQueries];
  for (int i = 0; i < kQueries; ++i) window[i] = window_of(a, query + i);

  for (int first_key = chunk; first_key < min(chunk + kChunk, a.s_kv); first_key += kKeys) {
    bool needed = false;
    for (int i = 0; i < kQueries; ++i) needed = needed || overlaps(window[i], first_key, first_key + kKeys);
    if (!needed) {                                   // by no query; all threads agree
      for (int i = 0; i < kQueries; ++i) store_logit(a, query + i, first_key + t, {0, 0}, 0);
      continue;
    }
    trace_step("[T1] keys");                         // the barrier before [T4] says that nobody reads k any more
    copy_rows<Shape, kKeys, kThreads>(s.k, a.k, first_key, a.s_kv, t);
    ptx::cp_async_commit_group();
    ptx::cp_async_wait_group<0>();                   // of q too, the first time
    ptx::fence_proxy_async_shared();
    __syncthreads();                                 // the tile is there; and [T4] of the one before is over

    trace_step("[T2] scores");
    float d[64];
    multiply<Shape>(d, s.q, s.k);

    trace_step("[T3] heads of a warp", 1000);
    sum_rows(d, weight, s.sum[warp], lane);
    __syncthreads();                                 // the sums are there; and [T2] is over

    // [across_warps]
    trace_step("[T4] heads of a query", 30);
    const int key = first_key + t;
    for (int i = 0; i < kQueries && key < a.s_kv; ++i) {
      float sum = 0;
      for (int w = 0; w < kWarps; ++w) sum += s.sum[i * kWarps + w][t];
      store_logit(a, query + i, key, window[i], sum * a.k_scale[key]);
    }
    // [across_warps]
  }
  ptx::cp_async_wait_group<0>();                     // q, if no tile was needed: nothing may land after the CTA's end
}

static int64_t cta_count(const IndexerArgs& a) {
  return (int64_t(a.s_q) * a.h_i + kRows - 1) / kRows * ((a.s_kv + kChunk - 1) / kChunk);
}

static const char* unsupported(const IndexerArgs& a) {
  if (const char* why = shape_unsupported(a)) return why;
  if (cta_count(a) > 0x7fffffff) return "ceil(s_q * h_i / 64) * ceil(s_kv / 512) must be below 2^31 (one CTA each)";
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
    "03_heads_as_rows", "FP8 wgmma, heads as rows, shuffles over heads", Accuracy::kFp8, Repeatable::kYes};

}  // namespace dsa::indexer_03

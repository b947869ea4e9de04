/// @file 04_keys_as_rows.cu
/// Lightning indexer, rung 4: keys as rows. A thread sums a quarter of a key's heads without asking anybody.
///
/// | before        | 03_heads_as_rows.cu: 96 shuffles and a round through shared memory per tile                      |
/// |---------------|--------------------------------------------------------------------------------------------------|
/// | **this rung** | M = 64 keys, N = 128 (query, head) columns; weights in 32 registers; 8 shuffles per tile          |
/// | next          | 05_auto_pipelined.cu: the next keys are loaded while these are multiplied                        |
/// | reference     | reference/indexer.cpp                                                                            |
/// | chapter       | @ref indexer_04                                                                                  |
///
/// A CTA is one warpgroup. It owns a block of 2 queries x 64 heads, or 4 x 32, and walks over 512 keys, 64 at a time.
///
///     [T1] 64 keys -> k                              cp.async, then wait
///     [T2] S = K Q^T, 64 keys x 128 columns          4 x m64n128k32 (d_i = 128)
///     [T3] ReLU, weight, sum: 16 columns per query   in the thread; then 2 shuffles per key and query
///     [T4] key scale, store                          one thread of four
///
/// Expected       per tile 256 clocks of tensor cores and ~130 of the epilogue; the four CTAs of an SM cover each other's loads
///                (8 KiB, ~1000 clocks) badly: ~600 clocks; 67 k tiles (4096 causal) / 132 x 600 = 0.30 M clocks: 0.2 ms.
/// Shared memory  q 16 KiB + k 8 KiB = 24 KiB of 227 KiB: 4 CTAs per SM, by registers.
/// Registers      S 64 + weights 32 + addresses, of 128.
#include "../common/indexer_heads.cuh"
#include "../common/register.cuh"
#include "../device/trace.cuh"

namespace dsa::indexer_04 {

constexpr int kThreads = 128;
constexpr int kChunk = 512;                          ///< keys of a CTA

template <class Shape> struct SharedStorage {
  alignas(1024) e4m3 q[kBlockColumns * Shape::kDim];
  alignas(1024) e4m3 k[kGranule * Shape::kDim];
};

template <class Shape> static __global__ void __launch_bounds__(kThreads, 4) kernel(const IndexerArgs a) {
  constexpr int kQueries = Shape::kQueries;
  SharedStorage<Shape>& s = shared_memory<SharedStorage<Shape>>();
  const int t = threadIdx.x;
  const unsigned chunks = (a.s_kv + kChunk - 1) / kChunk;
  const int chunk = int(blockIdx.x % chunks) * kChunk, query = int(blockIdx.x / chunks) * kQueries;
  const int64_t first_column = int64_t(query) * Shape::kHeads, columns = int64_t(a.s_q) * Shape::kHeads;

  copy_rows<Shape, kBlockColumns, kThreads>(s.q, a.q, first_column, columns, t);
  float w[32];
  load_weights(w, a.weights + first_column, columns - first_column, t);
  Window window[kQueries];
  for (int i = 0; i < kQueries; ++i) window[i] = window_of(a, query + i);

  for (int first_key = chunk; first_key < min(chunk + kChunk, a.s_kv); first_key += kGranule) {
    bool needed = false;
    for (int i = 0; i < kQueries; ++i) needed = needed || overlaps(window[i], first_key, first_key + kGranule);
    if (!needed) {                                   // by no query; all threads agree
      for (int i = t / kGranule; i < kQueries; i += kThreads / kGranule)
        store_logit(a, query + i, first_key + t % kGranule, {0, 0}, 0);
      continue;
    }
    trace_step("[T1] keys");
    __syncthreads();                                 // the product of the tile before is over
    copy_rows<Shape, kGranule, kThreads>(s.k, a.k, first_key, a.s_kv, t);
    ptx::cp_async_commit_group();
    float scale[2];                                  // of this thread's keys; on their way while the keys are
    for (int h = 0; h < 2; ++h) scale[h] = a.k_scale[min(first_key + accumulator_row(t, h), a.s_kv - 1)];
    ptx::cp_async_wait_group<0>();                   // of q too, the first time
    ptx::fence_proxy_async_shared();
    __syncthreads();

    trace_step("[T2] scores");
    float d[64];
    multiply<Shape>(d, s.k, s.q);

    // [epilogue]
    trace_step("[T3] heads", 300);
#pragma unroll
    for (int i = 0; i < kQueries; ++i) {
      float sum[2];
      sum_columns<Shape>(d, w, i, sum);
      for (int h = 0; h < 2; ++h) {
        const float logit = row_sum(sum[h]) * scale[h];
        if (t % 4 == 0) store_logit(a, query + i, first_key + accumulator_row(t, h), window[i], logit);
      }
    }
    // [epilogue]
  }
  ptx::cp_async_wait_group<0>();                     // q, if no tile was needed: nothing may land after the CTA's end
}

static int64_t cta_count(const IndexerArgs& a) {
  return (int64_t(a.s_q) * a.h_i + kBlockColumns - 1) / kBlockColumns * ((a.s_kv + kChunk - 1) / kChunk);
}

static const char* unsupported(const IndexerArgs& a) {
  if (const char* why = shape_unsupported(a)) return why;
  if (cta_count(a) > 0x7fffffff) return "ceil(s_q * h_i / 128) * ceil(s_kv / 512) must be below 2^31 (one CTA each)";
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
    "04_keys_as_rows", "keys as rows of the product, weights in registers", Accuracy::kFp8, Repeatable::kYes};

}  // namespace dsa::indexer_04

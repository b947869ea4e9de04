/// @file 05_auto_pipelined.cu
/// Lightning indexer, rung 5: the next keys are on their way while these are multiplied.
///
/// | before        | 04_keys_as_rows.cu: load, wait, multiply, sum, one tile after the other                          |
/// |---------------|--------------------------------------------------------------------------------------------------|
/// | **this rung** | a CTA walks over all keys of its queries; a template keeps two tiles of keys on their way         |
/// | next          | 06_warp_specialized.cu: one thread copies, and nobody waits for the whole CTA                     |
/// | reference     | reference/indexer.cpp                                                                            |
/// | chapter       | @ref indexer_05                                                                                  |
///
/// A CTA is two warpgroups and owns a block of 2 queries x 64 heads, or 4 x 32. It visits what any of them sees, 128 keys at a
/// time, and stores it all, inside the queries' own windows or not; a second kernel then writes -inf (indexer_clean.cuh).
///
///     load     [T1] 128 keys and their scales -> buffer      cp.async; zeros past the last key
///     compute  [T2] S = K Q^T, 64 keys x 128 columns each    4 x m64n128k32 (d_i = 128)
///              [T3] ReLU, weight, sum, key scale, store      8 shuffles
///
/// Expected       per 64 x 128 tile 256 clocks of tensor cores + ~130 of the epilogue, partly under the other CTA's products, a
///                barrier, fence and drain per 2 tiles: ~480 clocks; 67.5 k / 132 x 480 = 0.25 M clocks: 0.155 ms; the longest
///                blocks come last: + 0.01; second kernel for the -inf: + 0.01 (4096 causal).
/// Shared memory  q 16 KiB + k 3 x 16 KiB + scales 1.5 KiB = 65.5 KiB of 227 KiB: 2 CTAs per SM, by registers.
/// Registers      S 64 + weights 32 + addresses, of 128.
#include "../common/indexer_clean.cuh"
#include "../common/indexer_heads.cuh"
#include "../common/pipelined_loop.cuh"
#include "../common/register.cuh"
#include "../device/trace.cuh"

namespace dsa::indexer_05 {

constexpr int kThreads = 256;                        ///< two warpgroups
constexpr int kStages = 3;
constexpr int kKeys = 2 * kGranule;                  ///< of a tile

template <class Shape> struct SharedStorage {
  alignas(1024) e4m3 q[kBlockColumns * Shape::kDim];
  alignas(1024) e4m3 k[kStages][kKeys * Shape::kDim];
  float scale[kStages][kKeys];
};

template <class Shape> static __global__ void __launch_bounds__(kThreads, 2) kernel(const IndexerArgs a) {
  constexpr int kQueries = Shape::kQueries;
  SharedStorage<Shape>& s = shared_memory<SharedStorage<Shape>>();
  const int t = threadIdx.x, first_of_warpgroup = t / 128 * kGranule;
  const int query = int(blockIdx.x) * kQueries;
  const int64_t first_column = int64_t(query) * Shape::kHeads, columns = int64_t(a.s_q) * Shape::kHeads;
  const Window visited = block_window<Shape>(a, query);
  if (visited.end <= visited.begin) return;

  copy_rows<Shape, kBlockColumns, kThreads>(s.q, a.q, first_column, columns, t);
  ptx::cp_async_commit_group();
  float w[32];
  load_weights(w, a.weights + first_column, columns - first_column, t);

  // [load]
  const auto load = [&](int stage, int tile) {
    trace_step("[T1] keys");
    const int first_key = visited.begin + tile * kKeys;
    copy_rows<Shape, kKeys, kThreads>(s.k[stage], a.k, first_key, a.s_kv, t);
    if (t < kKeys) {
      const int key = first_key + t;
      ptx::cp_async_4(&s.scale[stage][t], a.k_scale + min(key, a.s_kv - 1), key < a.s_kv ? 4 : 0);
    }
  };
  // [load]
  // [compute]
  const auto compute = [&](int stage, int tile) {
    trace_step("[T2] scores");
    float d[64];
    multiply<Shape>(d, s.k[stage] + first_of_warpgroup * Shape::kDim, s.q);

    trace_step("[T3] heads", 300);
    float* logits = a.logits + query * a.logits_stride;
#pragma unroll
    for (int i = 0; i < kQueries; ++i) {
      float sum[2];
      sum_columns<Shape>(d, w, i, sum);
      for (int h = 0; h < 2; ++h) {
        const int row = first_of_warpgroup + accumulator_row(t, h), key = visited.begin + tile * kKeys + row;
        const float logit = row_sum(sum[h]) * s.scale[stage][row];
        if (t % 4 == 0 && key < a.s_kv && query + i < a.s_q) logits[i * a.logits_stride + key] = logit;
      }
    }
  };
  // [compute]
  pipelined_loop<kStages>((visited.end - visited.begin + kKeys - 1) / kKeys, load, compute);
}

static int64_t cta_count(const IndexerArgs& a) { return (int64_t(a.s_q) * a.h_i + kBlockColumns - 1) / kBlockColumns; }

static const char* unsupported(const IndexerArgs& a) { return shape_unsupported(a); }

static cudaError_t launch(const IndexerArgs& a, cudaStream_t stream) {
  if (a.s_q == 0 || a.s_kv == 0) return cudaSuccess;
  const cudaError_t error = with_indexer_shape(a, [&](auto shape) {
    using Shape = decltype(shape);
    static_assert(sizeof(SharedStorage<Shape>) <= kMaxSharedMemory);
    return dsa::launch(kernel<Shape>, {dim3(unsigned(cta_count(a))), dim3(kThreads), sizeof(SharedStorage<Shape>), stream}, a);
  });
  return error == cudaSuccess ? launch_clean(a, stream) : error;
}

static const Register<IndexerArgs, unsupported, launch> registered{
    "05_auto_pipelined", "a template overlaps the loads of keys with the products", Accuracy::kFp8, Repeatable::kYes};

}  // namespace dsa::indexer_05

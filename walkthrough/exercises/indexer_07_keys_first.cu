/// @file indexer_07_keys_first.cu
/// Exercise: the butterfly of rung 7 the other way round: first each thread keeps one key of both queries, then one query. About
/// 4 lines are missing.
///
///     mkdir ~/my_kernels && cp walkthrough/exercises/indexer_07_keys_first.cu ~/my_kernels/
///     cmake -B build -DDSA_USER_KERNELS=$HOME/my_kernels && cmake --build build
///     build/bin/dsa check --stage indexer --step ex_keys_first --device emulator
///
/// The chapter (walkthrough/indexer/07_butterfly.md) has the solution.
#include "cuda/common/indexer_clean.cuh"
#include "cuda/common/indexer_heads.cuh"
#include "cuda/common/indexer_producer.cuh"
#include "cuda/common/register.cuh"
#include "cuda/device/trace.cuh"

namespace ex_keys_first {

using namespace dsa;

constexpr int kMathThreads = 512;
constexpr int kThreads = kMathThreads + 128;
constexpr int kReleases = kMathThreads / 32;         ///< arrivals on an empty barrier: a warp each

/// What the math warpgroups must know of a block of queries.
struct Item {
  int block;                                         ///< -1: there are no more
  int first_key, tiles;
};

template <class Shape> struct SharedStorage {
  QueryTile<Shape> q[kQStages];
  KeyTile<Shape> k[kKStages];
  alignas(128) float weights[kQStages][kBlockColumns];
  alignas(128) float scale[kKStages][kTileKeys];
  Item item[kQStages];
  ptx::mbarrier q_full[kQStages];                    ///< 1 arrival, the producer's, and the bytes of q and the weights
  ptx::mbarrier q_empty[kQStages];                   ///< kReleases arrivals
  ptx::mbarrier k_full[kKStages];                     ///< 1 arrival, the producer's, and the bytes of keys and scales
  ptx::mbarrier k_empty[kKStages];                    ///< kReleases arrivals
};

// ---- Producer ---------------------------------------------------------------------------------------------------------
template <class Shape>
DSA_DEVICE void produce(SharedStorage<Shape>& s, const IndexerArgs& a, const IndexerMaps& maps, int blocks) {
  ptx::setmaxnreg_dec<32>();
  if (threadIdx.x % 128 != 0) return;
  trace_role("producer");
  prefetch_maps(maps);
  auto q_at = RingPosition<kQStages>::producer();
  auto k_at = RingPosition<kKStages>::producer();
  for (int block = blockIdx.x; block < blocks; block += gridDim.x) {
    // Comes from memory while the math warpgroups are busy with a full ring, 3 x 1400 clocks.
    const Window visited = block_window<Shape>(a, int64_t(block) * Shape::kQueries);
    if (visited.end <= visited.begin) continue;
    const int tiles = (visited.end - visited.begin + kTileKeys - 1) / kTileKeys;

    trace_step("[P1] queries");
    ptx::mbarrier_wait_parity(&s.q_empty[q_at.stage], q_at.parity);
    s.item[q_at.stage] = {block, visited.begin, tiles};
    ptx::mbarrier_arrive_expect_tx(&s.q_full[q_at.stage], kQueryBytes<Shape>);
    copy_queries(s.q[q_at.stage], s.weights[q_at.stage], maps, block, &s.q_full[q_at.stage]);
    q_at.advance();

    trace_step("[P2] keys");
    for (int tile = 0; tile < tiles; ++tile, k_at.advance()) {
      ptx::mbarrier_wait_parity(&s.k_empty[k_at.stage], k_at.parity);
      ptx::mbarrier_arrive_expect_tx(&s.k_full[k_at.stage], key_bytes<Shape>(4));
      copy_keys(s.k[k_at.stage], s.scale[k_at.stage], maps, visited.begin + tile * kTileKeys, 4, &s.k_full[k_at.stage]);
    }
  }
  ptx::mbarrier_wait_parity(&s.q_empty[q_at.stage], q_at.parity);
  s.item[q_at.stage] = {-1, 0, 0};
  ptx::mbarrier_arrive(&s.q_full[q_at.stage]);
}

// ---- Math ---------------------------------------------------------------------------------------------------------------
/// As sum_heads(): of query i and query i + kQueries / 2, an odd thread of a quad wants the second of its keys, an upper one
/// (2 and 3) the second of the queries.
template <class Shape>
DSA_DEVICE void sum_keys_first(float (&d)[64], const float (&w)[32], int t, float (&sum)[Shape::kQueries / 2]) {
  const bool upper = t & 2, odd = t & 1;
#pragma unroll
  for (int i = 0; i < Shape::kQueries / 2; ++i) {
    float a[2], b[2];                                // parts of the sums of two keys, for either query
    sum_columns_in_four<Shape>(d, w, i, a);
    sum_columns_in_four<Shape>(d, w, i + Shape::kQueries / 2, b);
    // ---- your code: about 4 lines -----------------------------------------------------------------------------
    // Exchange with the thread beside (^ 1), then with the other half of the quad (^ 2).
    sum[i] = upper ? (odd ? b[1] : b[0]) : (odd ? a[1] : a[0]);
    // ---- end of your code -------------------------------------------------------------------------------------
  }
}

/// [C3] The logits of 64 keys. @param logits  of this thread's first query, at its key  @param queries  from that one on
template <class Shape>
DSA_DEVICE void store_logits(float (&d)[64], const float (&w)[32], float scale, float* logits, int64_t stride, int queries,
                             int keys, int t) {
  float sum[Shape::kQueries / 2];
  sum_keys_first<Shape>(d, w, t, sum);
#pragma unroll
  for (int i = 0; i < Shape::kQueries / 2; ++i)
    if (i < queries && keys > 0) logits[i * stride] = sum[i] * scale;
}

template <class Shape> DSA_DEVICE void do_math(SharedStorage<Shape>& s, const IndexerArgs& a, int warpgroup) {
  ptx::setmaxnreg_inc<112>();
  trace_role(math_role(warpgroup));
  const int t = threadIdx.x % 128, row = warpgroup * kGranule + scattered_key(t);   // of a tile
  float d[64], w[32];
  auto q_at = RingPosition<kQStages>::consumer();
  auto k_at = RingPosition<kKStages>::consumer();
  for (;; q_at.advance()) {
    trace_step("[C1] weights");
    ptx::mbarrier_wait_parity(&s.q_full[q_at.stage], q_at.parity);
    const Item item = s.item[q_at.stage];
    if (item.block < 0) return;
    load_weights(w, s.weights[q_at.stage], kBlockColumns, t);
    const int query = item.block * Shape::kQueries + scattered_query<Shape>(t, 0);
    float* logits = a.logits + query * a.logits_stride + item.first_key + row;
    int keys = a.s_kv - item.first_key - row;        // from this thread's key on
    for (int tile = 0; tile < item.tiles; ++tile, k_at.advance()) {
      trace_step("[C2] scores");
      ptx::mbarrier_wait_parity(&s.k_full[k_at.stage], k_at.parity);
      const float scale = s.scale[k_at.stage][row];
      multiply<Shape>(d, s.k[k_at.stage].k + warpgroup * kGranule * Shape::kDim, s.q[q_at.stage].q);
      release_loaded(s.k_empty[k_at.stage]);
      if (tile + 1 == item.tiles) release(s.q_empty[q_at.stage]);

      trace_step("[C3] heads", 300);
      store_logits<Shape>(d, w, scale, logits, a.logits_stride, a.s_q - query, keys, t);
      logits += kTileKeys;
      keys -= kTileKeys;
    }
  }
}

template <class Shape>
static __global__ void __launch_bounds__(kThreads, 1)
    kernel(const IndexerArgs a, const __grid_constant__ IndexerMaps maps, const int blocks) {
  SharedStorage<Shape>& s = shared_memory<SharedStorage<Shape>>();
  if (threadIdx.x == 0) {
    for (int i = 0; i < kQStages; ++i) {
      ptx::mbarrier_init(&s.q_full[i], 1);
      ptx::mbarrier_init(&s.q_empty[i], kReleases);
    }
    for (int i = 0; i < kKStages; ++i) {
      ptx::mbarrier_init(&s.k_full[i], 1);
      ptx::mbarrier_init(&s.k_empty[i], kReleases);
    }
    ptx::fence_mbarrier_init();
  }
  __syncthreads();
  const int warpgroup = __shfl_sync(0xffffffffu, int(threadIdx.x) / 128, 0);   // uniform, and the compiler knows
  if (warpgroup == kMathThreads / 128) produce(s, a, maps, blocks);
  else do_math(s, a, warpgroup);
}

static const char* unsupported(const IndexerArgs& a) { return tensor_copy_unsupported(a); }

static cudaError_t launch(const IndexerArgs& a, cudaStream_t stream) {
  if (a.s_q == 0 || a.s_kv == 0) return cudaSuccess;
  const int blocks = int((int64_t(a.s_q) * a.h_i + kBlockColumns - 1) / kBlockColumns);
  const cudaError_t error = with_indexer_shape(a, [&](auto shape) {
    using Shape = decltype(shape);
    static_assert(sizeof(SharedStorage<Shape>) <= kMaxSharedMemory);
    const LaunchConfig config{dim3(unsigned(min(blocks, sm_count()))), dim3(kThreads), sizeof(SharedStorage<Shape>), stream};
    return dsa::launch(kernel<Shape>, config, a, indexer_maps<Shape>(a), blocks);
  });
  return error == cudaSuccess ? launch_clean(a, stream) : error;
}

static const Register<IndexerArgs, unsupported, launch> registered{
    "ex_keys_first", "exercise: the butterfly keeps keys first, then queries", Accuracy::kFp8, Repeatable::kYes};

}  // namespace ex_keys_first

/// @file 07_butterfly.cu
/// Lightning indexer, rung 7: the last step of the sum over heads leaves one logit in each thread instead of four in each quad.
///
/// | before        | 06_warp_specialized.cu: 8 shuffles, after which four threads hold the same four logits            |
/// |---------------|--------------------------------------------------------------------------------------------------|
/// | **this rung** | a reduce-scatter: 3 shuffles, one key scale and one store per thread; the ReLU in place and four  |
/// |               | chains of additions, so that hardly an instruction waits for the one before                      |
/// | next          | 08_balanced.cu: no work outside the windows, and none left over at the end                        |
/// | reference     | reference/indexer.cpp                                                                            |
/// | chapter       | @ref indexer_07                                                                                  |
///
///     warpgroup 4: producer, one thread            warpgroups 0 to 3: 64 of a tile's 256 keys each
///     ---------------------------------            ---------------------------------------------------
///     [P1] wait q_empty[r]                         [C1] wait q_full[r]; 32 weights -> registers
///          q, weights -> q[r]   (item by hand)
///     [P2] wait k_empty[s]                         [C2] wait k_full[s]; S = K Q^T
///          256 keys, scales -> k[s]                     give k[s], after the last tile q[r] too
///                                                  [C3] ReLU, weight, sum, scattered over the quad;
///                                                       key scale, store
///
/// Stores         a warp writes 16 neighbouring keys of each query of the block, 64 bytes, in one instruction.
/// Expected       346 to 373 clocks per 64 x 128 tile instead of 385 (measured without windows): 72 k / 132 x 360 = 0.196 M
///                clocks at 1.6 GHz = 0.123 ms, launches and -inf 0.02: 0.14 ms (4096 causal).
/// Shared memory  q 3 x 16 KiB + k 3 x 32 KiB + scales 3 KiB + weights 2 KiB = 149 KiB of 227 KiB: 1 CTA per SM.
/// Registers      math 112, producer 32: 512 * 112 + 128 * 32 = 61440 = 640 * 96, what the CTA is launched with.
#include "../common/indexer_clean.cuh"
#include "../common/indexer_heads.cuh"
#include "../common/indexer_producer.cuh"
#include "../common/register.cuh"
#include "../device/trace.cuh"

namespace dsa::indexer_07 {

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
// [producer]
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
// [producer]

// ---- Math ---------------------------------------------------------------------------------------------------------------
/// [C3] The logits of 64 keys. @param logits  of this thread's first query, at its key  @param queries  from that one on
// [store]
template <class Shape>
DSA_DEVICE void store_logits(float (&d)[64], const float (&w)[32], float scale, float* logits, int64_t stride, int queries,
                             int keys, int t) {
  float sum[Shape::kQueries / 2];
  sum_heads<Shape>(d, w, t, sum);
#pragma unroll
  for (int i = 0; i < Shape::kQueries / 2; ++i)
    if (i < queries && keys > 0) logits[i * stride] = sum[i] * scale;
}
// [store]

// [math]
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
// [math]

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
    "07_butterfly", "the sum over heads is scattered over the quad", Accuracy::kFp8, Repeatable::kYes};

}  // namespace dsa::indexer_07

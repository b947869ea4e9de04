/// @file 09_lean_epilogue.cu
/// Lightning indexer, rung 9: the sum over heads with almost nothing in it but ReLU, weight and addition.
///
/// | before        | 08_balanced.cu: a thread sums both queries of the block and passes most of it on: 3 shuffles      |
/// |---------------|--------------------------------------------------------------------------------------------------|
/// | **this rung** | columns in another order: a thread sums one query, 1 shuffle for 64 heads, none for 32; the ReLU   |
/// |               | is a saturating multiplication, which the pipe of the additions does at its full rate             |
/// | next          | your own: walkthrough/your_kernel                                                                |
/// | reference     | reference/indexer.cpp                                                                            |
/// | chapter       | @ref indexer_09                                                                                  |
///
///     warpgroup 4, warp 0: producer                warpgroups 0 to 3: every fourth granule of the CTA's
///     ---------------------------------            ---------------------------------------------------
///     [P1] wait q_empty[r]                         [C1] wait q_full[r]; 32 weights -> registers
///          q, weights -> q[r]   (windows by hand)
///     [P2] next tile that somebody sees            [C2] wait k_full[s]; if a granule is for us: S = K Q^T
///          wait k_empty[s]; 1 to 4 granules,            give k[s]
///          scales -> k[s]       (tile by hand)     [C3] ReLU, weight, sum, key scale, store; give q[r] at the end
///
///     warpgroup 4, warps 1 to 3, clean mode        Whose heads 8 columns of S are, by thread of a quad:
///     ---------------------------------
///     [F1] between and outside the tiles:                          thread 0    1       2       3
///          -inf, 16 bytes at a time                    before      q0 q0 | q0 q0 | q0 q0 | q0 q0, later q1
///                                                      64 heads    q0 q0 | q0 q0 | q1 q1 | q1 q1
///                                                      32 heads    q0 q0 | q1 q1 | q2 q2 | q3 q3
///
/// Columns        a product does not care in which order they come. q is copied in 16 boxes, each the next few heads of all
///                queries of the block, 8 rows, which is the swizzle's atom.
/// ReLU           FMUL.SAT instead of FMNMX: x 2^-25 saturated to [0, 1], exact; 2^25 goes back into the sum (relu_scaled()).
/// Expected       205 instructions per 64 x 128 tile and warp instead of 216 (32 heads of 64: 197 instead of 244), none of the 64
///                maxima left on a pipe of half rate: 0.125 ms (4096 causal), 1.74 at 4096 x 32768; with 32 heads 15 % less.
/// Shared memory  q 3 x 16 KiB + k 3 x 32 KiB + scales 3 KiB + weights 2 KiB = 149 KiB of 227 KiB: 1 CTA per SM.
/// Registers      math 112, others 32: 512 * 112 + 128 * 32 = 61440 = 640 * 96, what the CTA is launched with.
#include "../common/indexer_heads.cuh"
#include "../common/indexer_pieces.cuh"
#include "../common/register.cuh"
#include "../device/trace.cuh"

namespace dsa::indexer_09 {

constexpr int kMathThreads = 512;
constexpr int kThreads = kMathThreads + 128;
constexpr int kReleases = kMathThreads / 32;         ///< arrivals on an empty barrier: a warp each

template <class Shape> struct SharedStorage {
  QueryTile<Shape> q[kQStages];
  KeyTile<Shape> k[kKStages];
  alignas(128) float weights[kQStages][kBlockColumns];
  alignas(128) float scale[kKStages][kTileKeys];
  Tile next[kKStages];                               ///< the tile after the buffer's, so that it is known in time
  Tile first[kQStages];
  int block[kQStages];                               ///< -1: there are no more
  Window window[kQStages][Shape::kQueries];          ///< clamped to the piece
  int end[kQStages][Shape::kQueries];                ///< of the piece; 0 if nothing is to be -inf, raw or past the last query
  ptx::mbarrier q_full[kQStages];                    ///< 1 arrival, the producer's, and the bytes of q and the weights
  ptx::mbarrier q_empty[kQStages];                   ///< kReleases arrivals
  ptx::mbarrier k_full[kKStages];                     ///< 1 arrival, the producer's, and the bytes of keys and scales
  ptx::mbarrier k_empty[kKStages];                    ///< kReleases arrivals
};

// ---- Producer ---------------------------------------------------------------------------------------------------------
// [producer]
template <class Shape>
DSA_DEVICE void produce(SharedStorage<Shape>& s, const IndexerArgs& a, const IndexerMaps& maps, const Pieces& pieces,
                        int lane) {
  trace_role("producer");
  if (ptx::elect_sync()) prefetch_maps(maps);
  auto q_at = RingPosition<kQStages>::producer();
  auto k_at = RingPosition<kKStages>::producer();
  Piece ahead = nth_piece(0, pieces);
  Window window_ahead = load_window<Shape>(a, ahead.block, lane);
  for (int n = 1; ahead.block >= 0; ++n) {
    const Piece piece = ahead;
    const Window window = clamp(window_ahead, piece);
    ahead = nth_piece(n, pieces);
    window_ahead = load_window<Shape>(a, ahead.block, lane);   // is there when this piece is done
    Tile next = next_tile<Shape>(window, 0, lane);
    if (next.granules() == 0) continue;

    trace_step("[P1] queries");
    ptx::mbarrier_wait_parity(&s.q_empty[q_at.stage], q_at.parity);
    if (lane < Shape::kQueries) {
      s.window[q_at.stage][lane] = window;
      s.end[q_at.stage][lane] = a.clean && piece.block * Shape::kQueries + lane < a.s_q ? piece.end : 0;
    }
    __syncwarp();                                    // before the arrival of the elected lane
    if (ptx::elect_sync()) {
      s.block[q_at.stage] = piece.block;
      s.first[q_at.stage] = next;
      ptx::mbarrier_arrive_expect_tx(&s.q_full[q_at.stage], kQueryBytes<Shape>);
      copy_queries_dealt(s.q[q_at.stage], s.weights[q_at.stage], maps, piece.block, &s.q_full[q_at.stage]);
    }
    q_at.advance();

    trace_step("[P2] keys");
    for (; next.granules() > 0; k_at.advance()) {
      const Tile tile = next;
      next = next_tile<Shape>(window, tile.end(), lane);
      ptx::mbarrier_wait_parity(&s.k_empty[k_at.stage], k_at.parity);
      if (ptx::elect_sync()) {
        s.next[k_at.stage] = next;
        ptx::mbarrier_arrive_expect_tx(&s.k_full[k_at.stage], key_bytes<Shape>(tile.granules()));
        copy_keys(s.k[k_at.stage], s.scale[k_at.stage], maps, tile.first_key(), tile.granules(), &s.k_full[k_at.stage]);
      }
    }
  }
  ptx::mbarrier_wait_parity(&s.q_empty[q_at.stage], q_at.parity);
  if (ptx::elect_sync()) {
    s.block[q_at.stage] = -1;
    ptx::mbarrier_arrive(&s.q_full[q_at.stage]);
  }
}
// [producer]

// ---- Math ---------------------------------------------------------------------------------------------------------------
/// [C3] The logits of 64 keys. @param logits  of this thread's query, at its first key, `key`
/// @param inside  nobody needs to look at the window; else keys outside it become -inf up to `end`, and the rest is not ours
// [store]
template <class Shape>
DSA_DEVICE void store_logits(float (&d)[64], const float (&w)[32], const float (&scale)[kDealtKeys<Shape>], float* logits,
                             const Window& window, const int& end, bool inside, int key, int t) {
  constexpr int kKeys = kDealtKeys<Shape>;           // 8 apart
  float sum[kKeys];
  sum_dealt<Shape>(d, w, t, sum);
#pragma unroll
  for (int i = 0; i < kKeys; ++i) sum[i] *= scale[i];
  if (inside) {
#pragma unroll
    for (int i = 0; i < kKeys; ++i) logits[8 * i] = sum[i];
  } else {
#pragma unroll
    for (int i = 0; i < kKeys; ++i) {
      const bool sees = contains(window, key + 8 * i);
      if (sees || key + 8 * i < end) logits[8 * i] = sees ? sum[i] : -INFINITY;
    }
  }
}
// [store]

// [math]
template <class Shape> DSA_DEVICE void do_math(SharedStorage<Shape>& s, const IndexerArgs& a, int warpgroup) {
  ptx::setmaxnreg_inc<112>();
  trace_role(math_role(warpgroup));
  constexpr int kKeys = kDealtKeys<Shape>;
  const int t = threadIdx.x % 128;
  const int our_query = dealt_query<Shape>(t), our_key = dealt_key<Shape>(t, 0);   // of the block, of a granule
  float d[64], w[32], scale[kKeys];
  int part = warpgroup;                              // which granule of the next tile is ours, if there are so many
  auto q_at = RingPosition<kQStages>::consumer();
  auto k_at = RingPosition<kKStages>::consumer();
  for (;; q_at.advance()) {
    trace_step("[C1] weights");
    ptx::mbarrier_wait_parity(&s.q_full[q_at.stage], q_at.parity);
    if (s.block[q_at.stage] < 0) return;
    const int query = s.block[q_at.stage] * Shape::kQueries + our_query;
    load_dealt_weights<Shape>(w, s.weights[q_at.stage], t);
    float* logits = a.logits + query * a.logits_stride + our_key;
    for (Tile tile = s.first[q_at.stage], next; tile.granules() > 0; tile = next, k_at.advance()) {
      trace_step("[C2] scores");
      ptx::mbarrier_wait_parity(&s.k_full[k_at.stage], k_at.parity);
      const int row = part * kGranule;
      const bool ours = part < tile.granules();
      next = s.next[k_at.stage];
      for (int i = 0; i < kKeys; ++i) scale[i] = s.scale[k_at.stage][row + our_key + 8 * i];   // whether ours or not
      if (ours) {
        begin_product<Shape>(d, s.k[k_at.stage].k + row * Shape::kDim, s.q[q_at.stage].q);
        end_product(d);
      }
      release(s.k_empty[k_at.stage]);

      trace_step("[C3] heads", ours ? 300 : 0);
      part = (part - tile.granules()) & 3;           // the next granule is for the warpgroup after the last one's
      const int key = tile.first_key() + row;
      if (ours)
        store_logits<Shape>(d, w, scale, logits + key, s.window[q_at.stage][our_query], s.end[q_at.stage][our_query],
                            tile.inside(), key + our_key, t);
    }
    release(s.q_empty[q_at.stage]);                 // after the windows have been looked at
  }
}
// [math]

template <class Shape>
static __global__ void __launch_bounds__(kThreads, 1)
    kernel(const IndexerArgs a, const __grid_constant__ IndexerMaps maps, const Pieces pieces) {
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
  if (warpgroup < kMathThreads / 128) return do_math(s, a, warpgroup);
  ptx::setmaxnreg_dec<32>();
  const int warp = __shfl_sync(0xffffffffu, int(threadIdx.x) % 128 / 32, 0), lane = threadIdx.x % 32;
  if (warp == 0) produce(s, a, maps, pieces, lane);
  else if (a.clean) fill_pieces<Shape>(a, pieces, warp - 1, lane);
}

static const char* unsupported(const IndexerArgs& a) {
  if (const char* why = tensor_copy_unsupported(a)) return why;
  return pieces_unsupported(a);
}

static cudaError_t launch(const IndexerArgs& a, cudaStream_t stream) {
  if (a.s_q == 0 || a.s_kv == 0) return cudaSuccess;
  const Pieces pieces = make_pieces(a, sm_count());
  return with_indexer_shape(a, [&](auto shape) {
    using Shape = decltype(shape);
    static_assert(sizeof(SharedStorage<Shape>) <= kMaxSharedMemory);
    const unsigned ctas = unsigned(min(pieces.count, sm_count()));
    const LaunchConfig config{dim3(ctas), dim3(kThreads), sizeof(SharedStorage<Shape>), stream};
    return dsa::launch(kernel<Shape>, config, a, dealt_maps<Shape>(a), pieces);
  });
}

static const Register<IndexerArgs, unsupported, launch> registered{
    "09_lean_epilogue", "a thread sums one query only; the ReLU rides on a multiplication", Accuracy::kFp8, Repeatable::kYes};

}  // namespace dsa::indexer_09

/// @file 08_balanced.cu
/// Lightning indexer, rung 8: the work is what the windows hold, rounded up to 64 keys, and all CTAs end together.
///
/// | before        | 07_butterfly.cu: tiles of 256 keys over the whole union of a block's windows; long blocks come last |
/// |---------------|--------------------------------------------------------------------------------------------------|
/// | **this rung** | granules of 64 keys go round the warpgroups; tiles that no query sees are left out; CTAs take     |
/// |               | rows, or pieces of very long ones, in a snake; warps that were idle write the -inf               |
/// | next          | 09_lean_epilogue.cu: fewer and cheaper instructions in the sum over heads                         |
/// | reference     | reference/indexer.cpp                                                                            |
/// | chapter       | @ref indexer_08                                                                                  |
///
///     warpgroup 4, warp 0: producer                warpgroups 0 to 3: every fourth granule of the CTA's
///     ---------------------------------            ---------------------------------------------------
///     [P1] wait q_empty[r]                         [C1] wait q_full[r]; 32 weights -> registers
///          q, weights -> q[r]   (windows by hand)
///     [P2] next tile that somebody sees            [C2] wait k_full[s]; if a granule is for us: S = K Q^T
///          wait k_empty[s]; 1 to 4 granules,            give k[s]
///          scales -> k[s]       (tile by hand)     [C3] ReLU, weight, sum, key scale, store; give q[r] at the end
///
///     warpgroup 4, warps 1 to 3, clean mode        Who gets which granule, blocks of 9 and of 6:
///     ---------------------------------
///     [F1] between and outside the tiles:              tile      0  1  2  3 | 0  1  2  3 | 0      | 1  2  3  0 | 1  2
///          -inf, 16 bytes at a time                    block     A          A            A        B            B
///
/// Snake          the last row of the problem is the longest in causal order. CTA c of G takes, counted from there, rows c,
///                2 G - 1 - c, 2 G + c, ...: who has got the longest of a round gets the shortest of the next. Rows of more than
///                8192 columns, and all if they are few, are cut into pieces (indexer_pieces.cuh).
/// Expected       as 07 without its 9 % (tails 6, imbalance 3) and without the second kernel: 66.8 k tiles / 132 x 365 = 0.185 M
///                clocks at 1.6 GHz = 0.116 ms, launch 0.003 (4096 causal).
/// Shared memory  q 3 x 16 KiB + k 3 x 32 KiB + scales 3 KiB + weights 2 KiB = 149 KiB of 227 KiB: 1 CTA per SM.
/// Registers      math 112, others 32: 512 * 112 + 128 * 32 = 61440 = 640 * 96, what the CTA is launched with.
#include "../common/indexer_heads.cuh"
#include "../common/indexer_pieces.cuh"
#include "../common/register.cuh"
#include "../device/trace.cuh"

namespace dsa::indexer_08 {

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
  Piece piece[kQStages];                             ///< block -1: there are no more
  Window window[kQStages][Shape::kQueries];          ///< clamped to the piece
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
    const Window window = clamp(window_ahead, piece, pieces);
    ahead = nth_piece(n, pieces);
    window_ahead = load_window<Shape>(a, ahead.block, lane);   // is there when this piece is done
    Tile next = next_tile<Shape>(window, 0, lane);
    if (next.granules() == 0) continue;

    trace_step("[P1] queries");
    ptx::mbarrier_wait_parity(&s.q_empty[q_at.stage], q_at.parity);
    if (lane < Shape::kQueries) s.window[q_at.stage][lane] = window;
    __syncwarp();                                    // before the arrival of the elected lane
    if (ptx::elect_sync()) {
      s.piece[q_at.stage] = piece;
      s.first[q_at.stage] = next;
      ptx::mbarrier_arrive_expect_tx(&s.q_full[q_at.stage], kQueryBytes<Shape>);
      copy_queries(s.q[q_at.stage], s.weights[q_at.stage], maps, piece.block, &s.q_full[q_at.stage]);
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
    s.piece[q_at.stage].block = -1;
    ptx::mbarrier_arrive(&s.q_full[q_at.stage]);
  }
}
// [producer]

// ---- Math ---------------------------------------------------------------------------------------------------------------
/// [C3] The logits of 64 keys. @param row  this thread's first query, `query`, at its key, `key`
/// @param inside  nobody needs to look at the windows; what lies past the piece's end is another CTA's
// [store]
template <class Shape>
DSA_DEVICE void store_logits(const IndexerArgs& a, float (&d)[64], const float (&w)[32], float scale, float* row,
                             const Window (&window)[Shape::kQueries], const Piece& piece, bool inside, int query, int key,
                             int t) {
  float sum[Shape::kQueries / 2];
  sum_heads<Shape>(d, w, t, sum);
#pragma unroll
  for (int i = 0; i < Shape::kQueries / 2; ++i) sum[i] *= scale;
  if (inside) {
#pragma unroll
    for (int i = 0; i < Shape::kQueries / 2; ++i) row[i * a.logits_stride] = sum[i];
  } else {
#pragma unroll
    for (int i = 0; i < Shape::kQueries / 2; ++i) {
      const bool sees = contains(window[scattered_query<Shape>(t, i)], key);
      if (sees || (a.clean && query + i < a.s_q && key < piece.end)) row[i * a.logits_stride] = sees ? sum[i] : -INFINITY;
    }
  }
}
// [store]

// [math]
template <class Shape> DSA_DEVICE void do_math(SharedStorage<Shape>& s, const IndexerArgs& a, int warpgroup) {
  ptx::setmaxnreg_inc<112>();
  trace_role(math_role(warpgroup));
  const int t = threadIdx.x % 128;
  float d[64], w[32];
  int part = warpgroup;                              // which granule of the next tile is ours, if there are so many
  auto q_at = RingPosition<kQStages>::consumer();
  auto k_at = RingPosition<kKStages>::consumer();
  for (;; q_at.advance()) {
    trace_step("[C1] weights");
    ptx::mbarrier_wait_parity(&s.q_full[q_at.stage], q_at.parity);
    if (s.piece[q_at.stage].block < 0) return;
    const int query = s.piece[q_at.stage].block * Shape::kQueries + scattered_query<Shape>(t, 0);
    load_weights(w, s.weights[q_at.stage], kBlockColumns, t);
    float* logits = a.logits + query * a.logits_stride + scattered_key(t);
    for (Tile tile = s.first[q_at.stage], next; tile.granules() > 0; tile = next, k_at.advance()) {
      trace_step("[C2] scores");
      ptx::mbarrier_wait_parity(&s.k_full[k_at.stage], k_at.parity);
      const int row = part * kGranule;
      const bool ours = part < tile.granules();
      float scale = 0;
      next = s.next[k_at.stage];
      if (ours) {
        begin_product<Shape>(d, s.k[k_at.stage].k + row * Shape::kDim, s.q[q_at.stage].q);
        scale = s.scale[k_at.stage][row + scattered_key(t)];   // loads under the product
        end_product(d);
      }
      release_loaded(s.k_empty[k_at.stage]);

      trace_step("[C3] heads", ours ? 300 : 0);
      part = (part - tile.granules()) & 3;           // the next granule is for the warpgroup after the last one's
      const int key = tile.first_key() + row;
      if (ours)
        store_logits<Shape>(a, d, w, scale, logits + key, s.window[q_at.stage], s.piece[q_at.stage], tile.inside(), query,
                            key + scattered_key(t), t);
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
    return dsa::launch(kernel<Shape>, config, a, indexer_maps<Shape>(a), pieces);
  });
}

static const Register<IndexerArgs, unsupported, launch> registered{
    "08_balanced", "only what the windows hold, longest blocks first, -inf by idle warps", Accuracy::kFp8, Repeatable::kYes};

}  // namespace dsa::indexer_08

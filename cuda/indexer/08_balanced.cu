/// @file 08_balanced.cu
/// Lightning indexer, rung 8: the work is what the windows hold, rounded up to 64 keys, and all CTAs end together.
///
/// | before        | 07_butterfly.cu: tiles of 256 keys over the whole union of a block's windows; long blocks come last |
/// |---------------|--------------------------------------------------------------------------------------------------|
/// | **this rung** | granules of 64 keys go round the warpgroups; tiles that no query sees are left out; pieces of     |
/// |               | 4096 columns, long ones first, in a snake; warps that were idle write the -inf                   |
/// | next          |                                                                                                  |
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
/// Snake          the last piece of the problem is the longest in causal order. CTA c of G takes, counted from there, pieces c,
///                2 G - 1 - c, 2 G + c, ...: who has got the longest of a round gets the shortest of the next.
/// Expected       as 07 without its 9 % (tails 6, imbalance 3) and without the second kernel: 66.8 k tiles / 132 x 365 = 0.185 M
///                clocks at 1.6 GHz = 0.116 ms, launch 0.003 (4096 causal).
/// Shared memory  q 3 x 16 KiB + k 3 x 32 KiB + scales 3 KiB + weights 2 KiB = 149 KiB of 227 KiB: 1 CTA per SM.
/// Registers      math 112, others 32: 512 * 112 + 128 * 32 = 61440 = 640 * 96, what the CTA is launched with.
#include <climits>

#include "../common/indexer_heads.cuh"
#include "../common/indexer_producer.cuh"
#include "../common/register.cuh"
#include "../device/trace.cuh"

namespace dsa::indexer_08 {

constexpr int kMathThreads = 512;
constexpr int kThreads = kMathThreads + 128;
constexpr int kReleases = kMathThreads / 32;         ///< arrivals on an empty barrier: a warp each

constexpr int kPiece = 4096;                         ///< columns; long blocks are shared by several CTAs
__host__ __device__ constexpr int64_t piece_count(int blocks, int s_kv) {
  return int64_t(blocks) * ((s_kv + kPiece - 1) / kPiece);
}
/// The logits of a block of queries in columns [begin, end).
struct Piece { int block, begin, end; };

/// Consecutive keys of one buffer: `granules` times 64, at most 4. None: the block has no more tiles.
struct Tile {
  int first_key, granules;
  int inside;                                        ///< not 0: every query of the block sees every key of the tile
  DSA_DEVICE int end() const { return first_key + granules * kGranule; }
};

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

// ---- Which pieces and tiles ---------------------------------------------------------------------------------------------
/// The n-th piece of this CTA; block -1: it has had all. Pieces are numbered block by block, for one range of columns after the
/// other; CTAs take them from the last down, in a snake.
// [snake]
DSA_DEVICE Piece nth_piece(int n, int blocks, int s_kv) {
  const int place = int(n % 2 ? gridDim.x - 1 - blockIdx.x : blockIdx.x);
  const int number = int(piece_count(blocks, s_kv)) - 1 - (n * int(gridDim.x) + place);
  if (number < 0) return {-1, 0, 0};
  const int begin = number / blocks * kPiece;
  return {number % blocks, begin, min(begin + kPiece, s_kv)};
}
// [snake]

/// Lane i of a warp has the window of query i of a block, the other lanes an empty one. Not clamped, so not waited for.
template <class Shape> DSA_DEVICE Window load_window(const IndexerArgs& a, int block, int lane) {
  const int64_t query = int64_t(block) * Shape::kQueries + lane;
  return block >= 0 && lane < Shape::kQueries && query < a.s_q ? Window{a.ks[query], a.ke[query]} : Window{0, 0};
}
DSA_DEVICE Window clamp(Window w, const Piece& piece) {
  w = {max(w.begin, piece.begin), min(w.end, piece.end)};
  return w.begin < w.end ? w : Window{0, 0};
}

/// The next tile, from key `from` on, that some lane's window needs. Whole warp.
// [next_tile]
template <class Shape> DSA_DEVICE Tile next_tile(Window w, int from, int lane) {
  const bool sees = w.end > from;
  const unsigned first = __reduce_min_sync(0xffffffffu, sees ? unsigned(max(w.begin, from)) : UINT_MAX);
  if (first == UINT_MAX) return {0, 0, 0};
  Tile tile;
  tile.first_key = int(first) / kKeyAlignment * kKeyAlignment;
  const int limit = tile.first_key + kTileKeys;
  const unsigned end = __reduce_max_sync(0xffffffffu, sees && w.begin < limit ? unsigned(min(w.end, limit)) : 0u);
  tile.granules = (int(end) - tile.first_key + kGranule - 1) / kGranule;
  tile.inside = __all_sync(0xffffffffu, lane >= Shape::kQueries || (w.begin <= tile.first_key && w.end >= tile.end()));
  return tile;
}
// [next_tile]

// ---- Producer ---------------------------------------------------------------------------------------------------------
// [producer]
template <class Shape>
DSA_DEVICE void produce(SharedStorage<Shape>& s, const IndexerArgs& a, const IndexerMaps& maps, int blocks, int lane) {
  trace_role("producer");
  if (ptx::elect_sync()) prefetch_maps(maps);
  auto q_at = RingPosition<kQStages>::producer();
  auto k_at = RingPosition<kKStages>::producer();
  Piece ahead = nth_piece(0, blocks, a.s_kv);
  Window window_ahead = load_window<Shape>(a, ahead.block, lane);
  for (int n = 1; ahead.block >= 0; ++n) {
    const Piece piece = ahead;
    const Window window = clamp(window_ahead, piece);
    ahead = nth_piece(n, blocks, a.s_kv);
    window_ahead = load_window<Shape>(a, ahead.block, lane);   // is there when this piece is done
    Tile next = next_tile<Shape>(window, 0, lane);
    if (next.granules == 0) continue;

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
    for (; next.granules > 0; k_at.advance()) {
      const Tile tile = next;
      next = next_tile<Shape>(window, tile.end(), lane);
      ptx::mbarrier_wait_parity(&s.k_empty[k_at.stage], k_at.parity);
      if (ptx::elect_sync()) {
        s.next[k_at.stage] = next;
        ptx::mbarrier_arrive_expect_tx(&s.k_full[k_at.stage], key_bytes<Shape>(tile.granules));
        copy_keys(s.k[k_at.stage], s.scale[k_at.stage], maps, tile.first_key, tile.granules, &s.k_full[k_at.stage]);
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

// ---- -inf outside the tiles ---------------------------------------------------------------------------------------------
/// [F1] Three warps take the CTA's pieces by turns. Inside the tiles, the math warpgroups write it.
// [fill_pieces]
template <class Shape> DSA_DEVICE void fill_pieces(const IndexerArgs& a, int blocks, int warp, int lane) {
  trace_role("-inf");
  for (int n = warp;; n += 3) {
    const Piece piece = nth_piece(n, blocks, a.s_kv);
    if (piece.block < 0) return;
    trace_step("[F1] -inf");
    const Window window = clamp(load_window<Shape>(a, piece.block, lane), piece);
    const int first_query = piece.block * Shape::kQueries, queries = min(Shape::kQueries, a.s_q - first_query);
    for (int from = piece.begin; from < piece.end;) {
      const Tile tile = next_tile<Shape>(window, from, lane);
      const int to = tile.granules > 0 ? tile.first_key : piece.end;
      for (int i = 0; i < queries; ++i) fill_outside(a.logits + (first_query + i) * a.logits_stride, from, to, lane);
      from = tile.granules > 0 ? tile.end() : piece.end;
    }
  }
}
// [fill_pieces]

// ---- Math ---------------------------------------------------------------------------------------------------------------
/// [C3] The logits of 64 keys. @param logits  of this thread's first query, `query`  @param key  of this thread
/// @param inside  nobody needs to look at the windows; what lies past the piece's end is another CTA's
// [store]
template <class Shape>
DSA_DEVICE void store_logits(const IndexerArgs& a, const float (&d)[64], const float (&w)[32], float scale, float* logits,
                             const Window (&window)[Shape::kQueries], const Piece& piece, bool inside, int query, int key,
                             int t) {
  float sum[Shape::kQueries / 2];
  sum_heads<Shape>(d, w, t, sum);
#pragma unroll
  for (int i = 0; i < Shape::kQueries / 2; ++i) {
    float* logit = logits + i * a.logits_stride + key;
    if (inside || contains(window[scattered_query<Shape>(t, i)], key)) *logit = sum[i] * scale;
    else if (a.clean && query + i < a.s_q && key < piece.end) *logit = -INFINITY;
  }
}
// [store]

// [math]
template <class Shape> DSA_DEVICE void do_math(SharedStorage<Shape>& s, const IndexerArgs& a, int warpgroup) {
  ptx::setmaxnreg_inc<112>();
  trace_role("math");
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
    float* logits = a.logits + query * a.logits_stride;
    Tile tile = s.first[q_at.stage], next;
    for (; tile.granules > 0; tile = next, k_at.advance()) {
      trace_step("[C2] scores");
      ptx::mbarrier_wait_parity(&s.k_full[k_at.stage], k_at.parity);
      const int row = part * kGranule + scattered_key(t);
      const bool ours = part < tile.granules;
      float scale = 0;
      if (ours) {
        begin_product<Shape>(d, s.k[k_at.stage].k + part * kGranule * Shape::kDim, s.q[q_at.stage].q);
        next = s.next[k_at.stage];                   // loads under the product
        scale = s.scale[k_at.stage][row];
        end_product(d);
      } else {
        next = s.next[k_at.stage];
      }
      release(s.k_empty[k_at.stage]);
      part = (part - tile.granules) & 3;             // the next granule is for the warpgroup after the last one's

      trace_step("[C3] heads", ours ? 300 : 0);
      if (ours)
        store_logits<Shape>(a, d, w, scale, logits, s.window[q_at.stage], s.piece[q_at.stage], tile.inside, query,
                            tile.first_key + row, t);
    }
    release(s.q_empty[q_at.stage]);                 // after the windows have been looked at
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
  if (warpgroup < kMathThreads / 128) return do_math(s, a, warpgroup);
  ptx::setmaxnreg_dec<32>();
  const int warp = __shfl_sync(0xffffffffu, int(threadIdx.x) % 128 / 32, 0), lane = threadIdx.x % 32;
  if (warp == 0) produce(s, a, maps, blocks, lane);
  else if (a.clean) fill_pieces<Shape>(a, blocks, warp - 1, lane);
}

static int block_count(const IndexerArgs& a) { return int((int64_t(a.s_q) * a.h_i + kBlockColumns - 1) / kBlockColumns); }

static const char* unsupported(const IndexerArgs& a) {
  if (const char* why = tensor_copy_unsupported(a)) return why;
  if (piece_count(block_count(a), a.s_kv) >= 1 << 30) return "ceil(s_q * h_i / 128) * ceil(s_kv / 4096) must be below 2^30";
  return nullptr;
}

static cudaError_t launch(const IndexerArgs& a, cudaStream_t stream) {
  if (a.s_q == 0 || a.s_kv == 0) return cudaSuccess;
  const int blocks = block_count(a), ctas = int(min(piece_count(blocks, a.s_kv), int64_t(sm_count())));
  return with_indexer_shape(a, [&](auto shape) {
    using Shape = decltype(shape);
    static_assert(sizeof(SharedStorage<Shape>) <= kMaxSharedMemory);
    const LaunchConfig config{dim3(unsigned(ctas)), dim3(kThreads), sizeof(SharedStorage<Shape>), stream};
    return dsa::launch(kernel<Shape>, config, a, indexer_maps<Shape>(a), blocks);
  });
}

static const Register<IndexerArgs, unsupported, launch> registered{
    "08_balanced", "only what the windows hold, longest blocks first, -inf by idle warps", Accuracy::kFp8, Repeatable::kYes};

}  // namespace dsa::indexer_08

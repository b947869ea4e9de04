/// @file indexer_lean.cuh
/// The roles of the indexer's rung 9, for kernels that score: that rung's own and those of index_topk. What they do is drawn
/// in cuda/indexer/09_lean_epilogue.cu, whose step labels these are.
#pragma once

#include "indexer_heads.cuh"
#include "indexer_pieces.cuh"

namespace dsa {

constexpr int kMathThreads = 512;
constexpr int kScoringThreads = kMathThreads + 128;
constexpr int kReleases = kMathThreads / 32;         ///< arrivals on an empty barrier: a warp each

template <class Shape> struct ScoringStorage {
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
DSA_DEVICE void produce(ScoringStorage<Shape>& s, const IndexerArgs& a, const IndexerMaps& maps, const Pieces& pieces,
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
template <class Shape> DSA_DEVICE void do_math(ScoringStorage<Shape>& s, const IndexerArgs& a, int warpgroup) {
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
      release_loaded(s.k_empty[k_at.stage]);

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

// ---- All roles ------------------------------------------------------------------------------------------------------------
/// The pieces of this CTA, of kScoringThreads threads launched with 96 registers each.
// [score_pieces]
template <class Shape> DSA_DEVICE void score_pieces(const IndexerArgs& a, const IndexerMaps& maps, const Pieces& pieces) {
  ScoringStorage<Shape>& s = shared_memory<ScoringStorage<Shape>>();
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
// [score_pieces]

static inline const char* scoring_unsupported(const IndexerArgs& a) {
  if (const char* why = tensor_copy_unsupported(a)) return why;
  return pieces_unsupported(a);
}

/// Starts kernel<Shape>(a, maps, pieces) of a problem that has logits.
template <class Kernel>
static cudaError_t launch_scoring(const Kernel& kernel_for, const IndexerArgs& a, const Pieces& pieces, cudaStream_t stream) {
  return with_indexer_shape(a, [&](auto shape) {
    using Shape = decltype(shape);
    static_assert(sizeof(ScoringStorage<Shape>) <= kMaxSharedMemory);
    const unsigned ctas = unsigned(min(pieces.count, sm_count()));
    const LaunchConfig config{dim3(ctas), dim3(kScoringThreads), sizeof(ScoringStorage<Shape>), stream};
    return dsa::launch(kernel_for(shape), config, a, dealt_maps<Shape>(a), pieces);
  });
}

}  // namespace dsa

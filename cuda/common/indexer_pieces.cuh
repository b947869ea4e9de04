/// @file indexer_pieces.cuh
/// Work in equal shares: pieces of rows, which the CTAs take in a snake, and in a piece the tiles that some query sees.
#pragma once

#include <climits>

#include "../device/trace.cuh"
#include "indexer_producer.cuh"

namespace dsa {

// ---- Pieces ---------------------------------------------------------------------------------------------------------------
/// The logits of a block of queries in columns [begin, end).
struct Piece { int block, begin, end; };

/// All pieces of a problem: `columns` wide, the last of a row less. Numbered block by block, for one range of columns after the
/// other.
struct Pieces {
  int blocks, s_kv, columns;
  int count;
  int skip = 0;                                      ///< a window of at most so many columns has no tiles, as an empty one
};

constexpr int kLongestPiece = 8192;                  ///< columns
constexpr int kPieceCost = 64;                       ///< what beginning a piece costs, in columns

static inline int block_count(const IndexerArgs& a) {
  return int((int64_t(a.s_q) * a.h_i + kBlockColumns - 1) / kBlockColumns);
}

/// Rows up to the longest piece stay whole if there are blocks enough: where windows grow from query to query, whole rows make
/// the better snake. Else a row becomes so many pieces that, were all windows whole, the CTAs would be done soonest.
// [make_pieces]
static inline Pieces make_pieces(const IndexerArgs& a, int ctas) {
  const int blocks = block_count(a);
  const int least = a.s_kv / kLongestPiece + (a.s_kv % kLongestPiece > 0);
  if (least == 1 && blocks >= 2 * ctas) return {blocks, a.s_kv, a.s_kv, blocks};
  const int most = min(max(3 * least, 4 * ctas / blocks), least + 64);
  Pieces best{};
  int64_t best_time = INT64_MAX;
  for (int n = least; n <= most; ++n) {              // about n pieces of a row, of whole granules
    const int columns = ((a.s_kv - 1) / n / kGranule + 1) * kGranule;
    const int64_t count = int64_t(blocks) * ((a.s_kv - 1) / columns + 1);
    const int64_t time = (count + ctas - 1) / ctas * (columns + kPieceCost);
    if (time < best_time) best_time = time, best = {blocks, a.s_kv, columns, int(count)};
  }
  return best;
}
// [make_pieces]

/// Why there would be too many to count, or nullptr.
static inline const char* pieces_unsupported(const IndexerArgs& a) {
  if (int64_t(block_count(a)) * 3 * (a.s_kv / kLongestPiece + 1) >= 1 << 30)
    return "ceil(s_q * h_i / 128) * (s_kv / 8192 + 1) must be below 2^30 / 3";
  return nullptr;
}

/// The n-th piece of this CTA; block -1: it has had all. From the last down, in a snake.
// [snake]
DSA_DEVICE Piece nth_piece(int n, const Pieces& all) {
  const int place = int(n % 2 ? gridDim.x - 1 - blockIdx.x : blockIdx.x);
  const int number = all.count - 1 - (n * int(gridDim.x) + place);
  if (number < 0) return {-1, 0, 0};
  const int begin = number / all.blocks * all.columns;
  return {number % all.blocks, begin, begin + min(all.columns, all.s_kv - begin)};
}
// [snake]

// ---- Windows and tiles of a piece -------------------------------------------------------------------------------------------
/// Lane i of a warp has the window of query i of a block, the other lanes an empty one. Not clamped, so not waited for.
template <class Shape> DSA_DEVICE Window load_window(const IndexerArgs& a, int block, int lane) {
  const int64_t query = int64_t(block) * Shape::kQueries + lane;
  return block >= 0 && lane < Shape::kQueries && query < a.s_q ? Window{a.ks[query], a.ke[query]} : Window{0, 0};
}
// [clamp]
DSA_DEVICE Window clamp(Window w, const Piece& piece, const Pieces& all) {
  if (max(min(w.end, all.s_kv), 0) - max(w.begin, 0) <= all.skip) return {0, 0};
  w = {max(w.begin, piece.begin), min(w.end, piece.end)};
  return w.begin < w.end ? w : Window{0, 0};
}
// [clamp]

/// Consecutive keys of one buffer: `granules` times 64, at most 4. None: the piece has no more tiles. Packed into one word, the
/// first key being a multiple of 16, so that the math warpgroups have it with one load.
struct Tile {
  int word;
  DSA_DEVICE static Tile make(int first_key, int granules, bool inside) { return {first_key | granules | inside << 3}; }
  DSA_DEVICE int first_key() const { return word & -kKeyAlignment; }
  DSA_DEVICE int granules() const { return word & 7; }
  DSA_DEVICE bool inside() const { return word & 8; }      ///< every query of the block sees every key of the tile
  DSA_DEVICE int end() const { return first_key() + granules() * kGranule; }
};

/// The next tile, from key `from` on, that some lane's window needs. Whole warp.
// [next_tile]
template <class Shape> DSA_DEVICE Tile next_tile(Window w, int from, int lane) {
  const bool sees = w.end > from;
  const unsigned first = __reduce_min_sync(0xffffffffu, sees ? unsigned(max(w.begin, from)) : UINT_MAX);
  if (first == UINT_MAX) return {0};
  const int first_key = int(first) / kKeyAlignment * kKeyAlignment, limit = first_key + kTileKeys;
  const unsigned end = __reduce_max_sync(0xffffffffu, sees && w.begin < limit ? unsigned(min(w.end, limit)) : 0u);
  const int granules = (int(end) - first_key + kGranule - 1) / kGranule;
  const bool inside = w.begin <= first_key && w.end >= first_key + granules * kGranule;
  return Tile::make(first_key, granules, __all_sync(0xffffffffu, lane >= Shape::kQueries || inside));
}
// [next_tile]

// ---- -inf outside the tiles ---------------------------------------------------------------------------------------------
/// [F1] Three warps take the CTA's pieces by turns. Inside the tiles, the math warpgroups write it.
// [fill_pieces]
template <class Shape> DSA_DEVICE void fill_pieces(const IndexerArgs& a, const Pieces& pieces, int warp, int lane) {
  trace_role("-inf");
  for (int n = warp;; n += 3) {
    const Piece piece = nth_piece(n, pieces);
    if (piece.block < 0) return;
    trace_step("[F1] -inf");
    const Window window = clamp(load_window<Shape>(a, piece.block, lane), piece, pieces);
    const int first_query = piece.block * Shape::kQueries, queries = min(Shape::kQueries, a.s_q - first_query);
    for (int from = piece.begin; from < piece.end;) {
      const Tile tile = next_tile<Shape>(window, from, lane);
      const int to = tile.granules() > 0 ? tile.first_key() : piece.end;
      for (int i = 0; i < queries; ++i) fill_outside(a.logits + (first_query + i) * a.logits_stride, from, to, lane);
      from = tile.granules() > 0 ? tile.end() : piece.end;
    }
  }
}
// [fill_pieces]

}  // namespace dsa

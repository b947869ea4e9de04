/// @file topk_tiles.hpp
/// How rung 6 of top-k deals out the columns of a row, so that its first tiles are a sample of the row. For the kernel, and for
/// tests that want to mislead it.
///
/// A row is cut into pieces of 128 columns. A tile has a piece for each of so many slots; slot s has the pieces s * tiles,
/// s * tiles + 1, ..., one in each tile. So every tile is spread evenly over the row.
#pragma once

#include <initializer_list>

namespace dsa {

constexpr int kPiece = 128;                      ///< columns: a quad per lane
constexpr int kTileQuads = 4;                    ///< quads of a thread, of one tile

/// Of a CTA with so many threads.
constexpr int tile_slots(int threads) { return kTileQuads * (threads / 32); }

/// Tiles of a row, counted from its first 16-byte boundary.
static constexpr int tiles_of(int columns, int slots) {
  const int pieces = columns / kPiece + (columns % kPiece != 0);
  return pieces / slots + (pieces % slots != 0);
}

/// Tiles that are the sample of a row: 4096 columns of a short one, twice as many of a long one, which has fewer of its k largest
/// in a tile.
constexpr int sample_tiles(int tiles) { return tiles < 16 ? 1 : 2; }

/// Whether the sample of a row has this column, of so many, for the CTAs of 256 or of 512 threads.
static constexpr bool is_sampled(int column, int columns) {
  for (const int threads : {256, 512}) {
    const int tiles = tiles_of(columns, tile_slots(threads));
    if (tiles > 1 && column / kPiece % tiles < sample_tiles(tiles)) return true;
  }
  return false;
}

}  // namespace dsa

/// @file mla_producer.cuh
/// A warpgroup that does nothing but gather: 64 rows per tile into a ring of K tiles.
#pragma once

#include "mla_tile.cuh"
#include "ring.cuh"

namespace dsa {

/// One buffer of the ring.
struct KeyTile {
  ColumnTile k[kQKTiles];              ///< V in the first 8 tiles
};

/// What belongs to a buffer besides its bytes, kept apart because tiles need 1024-byte alignment.
struct KeyTileState {
  uint64_t valid;                      ///< bit i: slot i of the tile has a row
  ptx::mbarrier full;                  ///< kFullArrivals: cp.async of every producer thread, and one for each half of `valid`
  ptx::mbarrier empty;                 ///< one arrival per consumer warp that reads the buffer
};
constexpr int kProducerThreads = 128;
constexpr unsigned kFullArrivals = kProducerThreads + 2;

/// The indices that a producer thread needs for one tile. They are judged when they are used: to compare one is to wait for
/// it, and it comes from far away.
struct ProducerRows {
  int row[4];                          ///< to copy: 8 threads have the same
  int slot;                            ///< of slot t, for the mask; threads 0 to 63
};

DSA_DEVICE ProducerRows look_up_rows(const MlaWork& w, int tile, int t) {
  ProducerRows rows;
#pragma unroll
  for (int i = 0; i < 4; ++i) rows.row[i] = selected_index(w, tile * kTileKeys + t / 8 + 16 * i);
  rows.slot = t < kTileKeys ? selected_index(w, tile * kTileKeys + t) : -1;
  return rows;
}

/// Columns 64 `first` .. 64 (first + kTiles) - 1 of the 64 rows.
template <int kTiles>
DSA_DEVICE void copy_rows(ColumnTile* tiles, int first, const MlaWork& w, const ProducerRows& rows, int t) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const bool visible = is_visible(w, rows.row[i]);
    copy_row<kTiles>(tiles + first, t / 8 + 16 * i, t % 8, kv_row(w, visible ? rows.row[i] : 0) + first * kTileColumns, visible);
  }
}

// [fill]
/// The mask of a tile, a warp for each half, as part of what `full` announces.
DSA_DEVICE void publish_valid(ptx::mbarrier& full, uint64_t& word, const MlaWork& w, const ProducerRows& rows, int t) {
  if (t >= kTileKeys) return;
  const uint32_t valid = __ballot_sync(0xffffffffu, is_visible(w, rows.slot));
  if (t % 32 == 0) {
    reinterpret_cast<uint32_t*>(&word)[t / 32] = valid;
    ptx::mbarrier_arrive(&full);                      // releases the store; the arrival of copies would not
  }
}

/// Starts the copies of one tile and the arrivals that announce it.
DSA_DEVICE void fill_tile(KeyTile& tile, KeyTileState& state, const MlaWork& w, const ProducerRows& rows, int t) {
  copy_rows<kQKTiles>(tile.k, 0, w, rows, t);
  ptx::cp_async_mbarrier_arrive_noinc(&state.full);   // when this thread's copies have landed
  publish_valid(state.full, state.valid, w, rows, t);
}
// [fill]

}  // namespace dsa

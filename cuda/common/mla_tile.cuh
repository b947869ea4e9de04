/// @file mla_tile.cuh
/// The tile that every tensor-core rung of sparse MLA works on: 64 heads of one query against 64 selected KV rows.
///
/// Q, K and V tiles have one layout: column tiles of 64 bf16 (128 bytes) by 64 rows, 128B swizzle. A KV row is both key
/// (576 columns) and value (its first 512), so the same bytes are read twice: as K-major operand for S = Q K^T, where the
/// reduction runs along the row, and as MN-major operand for O += P V, where it runs down the rows.
#pragma once

#include "../../reference/contracts.hpp"
#include "../device/device.cuh"
#include "../device/ptx.cuh"
#include "accumulator.cuh"
#include "selected.cuh"
#include "swizzle.cuh"

namespace dsa {

constexpr int kTileHeads = 64;                      ///< M of every product; missing heads are zero rows
constexpr int kTileKeys = 64;
constexpr int kTileColumns = 64;                    ///< bf16 columns of one column tile: 128 bytes
constexpr int kQKTiles = kDimQK / kTileColumns;     ///< 9
constexpr int kVTiles = kDimV / kTileColumns;       ///< 8
constexpr int kColumnTileBytes = 64 * 128;

/// 64 rows of 128 bytes, swizzled: 8 atoms of 8 rows.
struct alignas(1024) ColumnTile {
  bf16 element[64 * kTileColumns];
};

/// Where chunk `chunk` (16 bytes) of row `row` lies in a column tile.
DSA_DEVICE char* chunk_address(ColumnTile& tile, int row, int chunk) {
  return reinterpret_cast<char*>(&tile) + swizzle_128B(unsigned(row * 128 + chunk * 16));
}

// ---- Which part of the problem a CTA has ---------------------------------------------------------------------------
/// Up to 64 heads of one query: where they are in q and in the results.
struct HeadRows {
  int first_head;            ///< within h_q
  int heads;                 ///< 1 to 64
  int64_t head_row;          ///< (batch * s_q + query) * h_q + first_head: row of q, out, lse, max_logits
};

/// One query and up to 64 of its heads, all of one KV group.
struct MlaWork : HeadRows {
  int batch, query, group;
  int slots;                 ///< slots of the index list that may be valid
  int limit;                 ///< rows below this one may be read
  const int32_t* indices;    ///< [topk]
  const bf16* kv;            ///< of this batch and group: see kv_row
  int row_stride;            ///< elements
};

/// Head tiles per KV group. @tparam A SparseMlaFwdArgs or SparseMlaBwdArgs
template <class A> static __host__ __device__ constexpr int head_tiles(const A& a) {
  return (a.h_q / a.g + kTileHeads - 1) / kTileHeads;
}
/// Items of work of the whole problem.
template <class A> static __host__ __device__ constexpr int64_t mla_work_count(const A& a) {
  return int64_t(a.b) * a.s_q * a.g * head_tiles(a);
}

/// Item `n` < 2^31. The head tiles of a query are neighbours, so that CTAs that run together read the same rows out of L2.
template <class A> DSA_DEVICE MlaWork mla_work(const A& a, unsigned n) {
  MlaWork w;
  const unsigned tiles = head_tiles(a), tile = n % tiles, groups = a.g, queries = a.s_q;
  n /= tiles;
  w.group = int(n % groups);
  n /= groups;
  w.query = int(n % queries);
  w.batch = int(n / queries);
  const int group_heads = a.h_q / a.g;
  w.first_head = w.group * group_heads + int(tile) * kTileHeads;
  w.heads = min(kTileHeads, group_heads - int(tile) * kTileHeads);
  w.slots = slot_count(a, w.batch, w.query);
  w.limit = int(row_limit(a, w.query));
  w.head_row = (int64_t(w.batch) * a.s_q + w.query) * a.h_q + w.first_head;
  w.indices = index_list(a, w.batch, w.query, w.group);
  w.row_stride = a.g * kDimQK;
  w.kv = static_cast<const bf16*>(a.kv) + (int64_t(w.batch) * a.s_kv * a.g + w.group) * kDimQK;
  return w;
}

/// Where KV row `row` starts.
DSA_DEVICE const bf16* kv_row(const MlaWork& w, int row) { return w.kv + int64_t(row) * w.row_stride; }

/// What stands in slot `slot`, unjudged; -1 beyond the list.
DSA_DEVICE int selected_index(const MlaWork& w, int slot) { return slot < w.slots ? w.indices[slot] : -1; }
/// Whether there is such a KV row and the query sees it. Asked before an address is formed.
DSA_DEVICE bool is_visible(const MlaWork& w, int row) { return row >= 0 && row < w.limit; }
/// The KV row of slot `slot`, or -1: beyond the list, negative, or not visible.
DSA_DEVICE int selected_row(const MlaWork& w, int slot) {
  const int row = selected_index(w, slot);
  return is_visible(w, row) ? row : -1;
}

// ---- Copies into tiles -----------------------------------------------------------------------------------------------
/// Copies `kTiles` chunks of 16 bytes, one per column tile, of row `row` of a tile; a row is copied by 8 threads, chunk 0 to
/// 7. Zeros when not `valid`: what a product reads must not be NaN, because 0 * NaN is NaN.
// [copy_row]
template <int kTiles> DSA_DEVICE void copy_row(ColumnTile* tiles, int row, int chunk, const bf16* source, bool valid) {
  char* to = chunk_address(tiles[0], row, chunk);
  const bf16* from = source + chunk * 8;
#if !defined(DSA_EMULATOR)
  asm("" : "+l"(from));   // one address, and the tiles at constant distances from it; else the compiler adds up each anew
#endif
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile)
    ptx::cp_async_16(to + tile * kColumnTileBytes, from + tile * kTileColumns, valid ? 16 : 0);
}
// [copy_row]

/// The heads of `w` as 64 rows of 576 columns, or the column tiles first .. first + kTiles - 1 of them, by the threads t = 0 to
/// kThreads - 1; rows past the last head are zero.
template <int kThreads, int kTiles = kQKTiles>
DSA_DEVICE void copy_q(ColumnTile* tiles, const bf16* q, const MlaWork& w, int t, int first = 0) {
#pragma unroll 1
  for (int row = t / 8; row < kTileHeads; row += kThreads / 8) {
    const bool valid = row < w.heads;
    copy_row<kTiles>(tiles + first, row, t % 8, q + (w.head_row + (valid ? row : 0)) * kDimQK + first * kTileColumns, valid);
  }
}

// ---- Fragments -------------------------------------------------------------------------------------------------------
/// Rows of a fragment to and from shared memory: a float per row.
DSA_DEVICE void put_rows(float (&to)[kTileHeads], int t, const float (&x)[2]) {
  for (int h = 0; h < 2; ++h)
    if (t % 4 == 0) to[accumulator_row(t, h)] = x[h];
}
DSA_DEVICE void get_rows(const float (&from)[kTileHeads], int t, float (&x)[2]) {
  for (int h = 0; h < 2; ++h) x[h] = from[accumulator_row(t, h)];
}

/// Writes 64 rows by 16 columns, from A-operand registers (which an accumulator's columns 16 k.. are, packed), into a column
/// tile at column 16 * `step`; a warp writes its 16 rows.
// [store_fragment]
DSA_DEVICE void store_fragment(ColumnTile& tile, int t, int step, const uint32_t (&registers)[4]) {
  // Matrix m of stmatrix is register m: rows 8 (m % 2), columns 8 (m / 2). Lane l points at row l % 8 of matrix l / 8.
  const int lane = t % 32, row = t % 128 / 32 * 16 + lane / 8 % 2 * 8 + lane % 8;
  ptx::stmatrix_x4(chunk_address(tile, row, 2 * step + lane / 16), registers);
}
// [store_fragment]

}  // namespace dsa

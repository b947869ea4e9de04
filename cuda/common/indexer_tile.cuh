/// @file indexer_tile.cuh
/// What the rungs of the indexer share: shapes, windows, tiles of keys and queries, and their product.
///
/// A block of queries is 128 columns, (query, head) pairs: 2 queries of 64 heads or 4 of 32. In memory a block of q is 128
/// consecutive rows of d_i bytes, and its weights are 128 consecutive floats.
#pragma once

#include "../../reference/contracts.hpp"
#include "../device/device.cuh"
#include "../device/ptx.cuh"
#include "swizzle.cuh"

namespace dsa {

constexpr int kBlockColumns = 128;                 ///< (query, head) pairs of a block of queries
constexpr int kGranule = 64;                       ///< keys of one product: M of wgmma

// ---- Shapes -------------------------------------------------------------------------------------------------------------
/// The sizes that kernels are compiled for; the only template parameter of theirs.
template <int kHeads_, int kDim_> struct IndexerShape {
  static constexpr int kHeads = kHeads_, kDim = kDim_;
  static constexpr int kQueries = kBlockColumns / kHeads;   ///< of a block
  /// A row of q or k is one row of the swizzle mode, and 8 rows are its atom.
  static constexpr ptx::Swizzle kSwizzle =
      kDim == 128 ? ptx::Swizzle::k128B : kDim == 64 ? ptx::Swizzle::k64B : ptx::Swizzle::k32B;
};

/// f(IndexerShape<h_i, d_i>{}); sizes that shape_unsupported() has refused never come here.
template <class F> static cudaError_t with_indexer_shape(const IndexerArgs& a, const F& f) {
  const auto with_heads = [&]<int kHeads>() {
    switch (a.d_i) {
      case 32: return f(IndexerShape<kHeads, 32>{});
      case 64: return f(IndexerShape<kHeads, 64>{});
      default: return f(IndexerShape<kHeads, 128>{});
    }
  };
  return a.h_i == 32 ? with_heads.template operator()<32>() : with_heads.template operator()<64>();
}

/// Why there is no such shape, or nullptr.
static inline const char* shape_unsupported(const IndexerArgs& a) {
  if (a.h_i != 32 && a.h_i != 64) return "h_i must be 32 or 64";
  if (a.d_i != 32 && a.d_i != 64 && a.d_i != 128) return "d_i must be 32, 64 or 128: the rows of a swizzle mode";
  if (reinterpret_cast<uintptr_t>(a.q) % 16 || reinterpret_cast<uintptr_t>(a.k) % 16)
    return "q and k must be aligned to 16 bytes";
  return nullptr;
}

// ---- Windows ------------------------------------------------------------------------------------------------------------
/// The columns that a query sees, [begin, end), inside [0, s_kv). Empty if end <= begin.
struct Window { int begin, end; };

/// Of a query; queries past the last see nothing.
// [window]
DSA_DEVICE Window window_of(const IndexerArgs& a, int64_t row) {
  return row < a.s_q ? Window{max(a.ks[row], 0), min(a.ke[row], a.s_kv)} : Window{0, 0};
}
// [window]
DSA_DEVICE bool overlaps(Window w, int begin, int end) { return max(w.begin, begin) < min(w.end, end); }
DSA_DEVICE bool contains(Window w, int key) { return key >= w.begin && key < w.end; }

constexpr int kKeyAlignment = 16;                  ///< tiles begin at multiples: 64 bytes of logits, and of key scales

/// What the queries of a block see together lies in it; begins at a multiple of kKeyAlignment. Empty if they see nothing.
// [block_window]
template <class Shape> DSA_DEVICE Window block_window(const IndexerArgs& a, int64_t first_query) {
  Window all{a.s_kv, 0};
#pragma unroll
  for (int i = 0; i < Shape::kQueries; ++i) {
    const Window w = window_of(a, first_query + i);
    if (w.begin < w.end) all = {min(all.begin, w.begin), max(all.end, w.end)};
  }
  return {all.begin / kKeyAlignment * kKeyAlignment, all.end};
}
// [block_window]

/// Stores a logit, or what stands outside the window; nothing beyond the matrix.
DSA_DEVICE void store_logit(const IndexerArgs& a, int row, int key, Window w, float logit) {
  if (row >= a.s_q || key >= a.s_kv) return;
  float* to = a.logits + row * a.logits_stride + key;
  if (contains(w, key)) *to = logit;
  else if (a.clean) *to = -INFINITY;
}

/// Columns [begin, end) of a logits row become -inf, by lane `lane` of a whole warp: 16 bytes at a time, except at the ends.
// [fill]
DSA_DEVICE void fill_outside(float* row, int begin, int end, int lane) {
  if (begin >= end) return;
  float* to = row + begin;
  const int count = end - begin;
  const int head = min(count, int(-(reinterpret_cast<uintptr_t>(to) / sizeof(float)) % 4));   // up to a multiple of 16 bytes
  const int quads = (count - head) / 4;
  if (lane < head) to[lane] = -INFINITY;
  to += head;
  for (int i = lane; i < quads; i += 32)
    reinterpret_cast<float4*>(to)[i] = make_float4(-INFINITY, -INFINITY, -INFINITY, -INFINITY);
  if (lane < (count - head) % 4) to[4 * quads + lane] = -INFINITY;
}
// [fill]

// ---- Tiles in shared memory -----------------------------------------------------------------------------------------------
/// Where 16 bytes of row `row` lie in a tile: chunk 0 to d_i / 16 - 1.
template <class Shape> DSA_DEVICE e4m3* chunk_address(e4m3* tile, int row, int chunk) {
  return tile + swizzle(Shape::kSwizzle, unsigned(row * Shape::kDim + chunk * 16));
}

/// Threads t of kThreads fill a tile with rows first_row .. of `from`; rows past the last one, `rows`, are zeros and not read.
// [copy_rows]
template <class Shape, int kTileRows, int kThreads>
DSA_DEVICE void copy_rows(e4m3* tile, const e4m3* from, int64_t first_row, int64_t rows, int t) {
  constexpr int kChunks = Shape::kDim / 16;
#pragma unroll
  for (int i = t; i < kTileRows * kChunks; i += kThreads) {
    const int64_t row = first_row + i / kChunks;
    const bool valid = row < rows;
    ptx::cp_async_16(chunk_address<Shape>(tile, i / kChunks, i % kChunks),
                     from + (valid ? row : 0) * Shape::kDim + i % kChunks * 16, valid ? 16 : 0);
  }
}
// [copy_rows]

// ---- The product ------------------------------------------------------------------------------------------------------------
/// D = A B^T, 64 rows of A and 128 of B, both K-major: 32 of a row's bytes are one step. Issues only.
// [product]
template <class Shape> DSA_DEVICE void issue_product(float (&d)[64], const e4m3* a_rows, const e4m3* b_rows) {
  const uint64_t a = ptx::matrix_descriptor(a_rows, Shape::kSwizzle, 16, 8 * Shape::kDim);
  const uint64_t b = ptx::matrix_descriptor(b_rows, Shape::kSwizzle, 16, 8 * Shape::kDim);
#pragma unroll
  for (int step = 0; step < Shape::kDim / 32; ++step)
    ptx::wgmma_m64n128k32_e4m3_ss(d, ptx::descriptor_advance(a, 32 * step), ptx::descriptor_advance(b, 32 * step), step > 0);
}

/// The same with the fence before and the commit after: begins it.
template <class Shape> DSA_DEVICE void begin_product(float (&d)[64], const e4m3* a_rows, const e4m3* b_rows) {
  ptx::wgmma_keep(d);
  ptx::wgmma_fence();
  issue_product<Shape>(d, a_rows, b_rows);
  ptx::wgmma_commit_group();
}
/// Waits for it.
DSA_DEVICE void end_product(float (&d)[64]) {
  ptx::wgmma_wait_group<0>();
  ptx::wgmma_keep(d);
}
template <class Shape> DSA_DEVICE void multiply(float (&d)[64], const e4m3* a_rows, const e4m3* b_rows) {
  begin_product<Shape>(d, a_rows, b_rows);
  end_product(d);
}
// [product]

}  // namespace dsa

/// @file indexer_producer.cuh
/// What the tensor copies of the indexer need: maps of q, k, weights and key scales, and the shared memory they fill.
#pragma once

#include "indexer_heads.cuh"
#include "ring.cuh"

namespace dsa {

constexpr int kTileKeys = 4 * kGranule;            ///< of a buffer of the ring: 64 for each of four warpgroups
constexpr int kKStages = 3;                         ///< buffers of keys
constexpr int kQStages = 3;                        ///< buffers of q and weights

struct IndexerMaps {
  ptx::TensorMap q;                                ///< rows of d_i bytes; a box is a block of queries
  ptx::TensorMap k;                                ///< rows of d_i bytes; a box is a granule
  ptx::TensorMap weights, k_scale;                 ///< one row; a box is a block of queries, a tile of keys
};

/// A vector as a matrix of one row: past its end a copy finds zeros, whatever the length, where a plain bulk copy would need a
/// multiple of 16 bytes.
// [vector_map]
static inline ptx::TensorMap vector_map(const float* x, int64_t size, int box) {
  return ptx::make_tensor_map(x, {size, 1}, {(4 * size + 15) / 16 * 16}, {box, 1}, ptx::Swizzle::kNone);
}
// [vector_map]

template <class Shape> static IndexerMaps indexer_maps(const IndexerArgs& a) {
  constexpr int kDim = Shape::kDim;
  const int64_t columns = int64_t(a.s_q) * a.h_i;
  return {ptx::make_tensor_map(a.q, {kDim, columns}, {kDim}, {kDim, kBlockColumns}, Shape::kSwizzle),
          ptx::make_tensor_map(a.k, {kDim, a.s_kv}, {kDim}, {kDim, kGranule}, Shape::kSwizzle),
          vector_map(a.weights, columns, kBlockColumns), vector_map(a.k_scale, a.s_kv, kTileKeys)};
}

/// Why the copies cannot be made, or nullptr.
static inline const char* tensor_copy_unsupported(const IndexerArgs& a) {
  if (const char* why = shape_unsupported(a)) return why;
  if (reinterpret_cast<uintptr_t>(a.k_scale) % 16 || reinterpret_cast<uintptr_t>(a.weights) % 16)
    return "k_scale and weights must be aligned to 16 bytes";
  if (int64_t(a.s_q) * a.h_i > 0x7fffffff) return "s_q * h_i must be below 2^31 (a coordinate of the tensor map)";
  return nullptr;
}

/// A math warpgroup's name in figures.
DSA_DEVICE const char* math_role(int warpgroup) {
  switch (warpgroup) {
    case 0: return "math 0";
    case 1: return "math 1";
    case 2: return "math 2";
    default: return "math 3";
  }
}

/// Fetches the maps ahead of the first copy. One thread.
DSA_DEVICE void prefetch_maps(const IndexerMaps& maps) {
  ptx::prefetch_tensormap(&maps.q);
  ptx::prefetch_tensormap(&maps.k);
  ptx::prefetch_tensormap(&maps.weights);
  ptx::prefetch_tensormap(&maps.k_scale);
}

template <class Shape> struct alignas(1024) KeyTile {
  e4m3 k[kTileKeys * Shape::kDim];
};
template <class Shape> struct alignas(1024) QueryTile {
  e4m3 q[kBlockColumns * Shape::kDim];
};

/// Copies the queries and weights of a block; completes kQueryBytes on `full`.
template <class Shape> constexpr unsigned kQueryBytes = kBlockColumns * (Shape::kDim + sizeof(float));
template <class Shape>
DSA_DEVICE void copy_queries(QueryTile<Shape>& tile, float* weights, const IndexerMaps& maps, int block, ptx::mbarrier* full) {
  ptx::cp_async_bulk_tensor_load(tile.q, &maps.q, {0, block * kBlockColumns}, full);
  ptx::cp_async_bulk_tensor_load(weights, &maps.weights, {block * kBlockColumns, 0}, full);
}

/// The map of q for blocks whose columns are dealt out as indexer_heads.cuh has it: 8 columns are the next few heads of every
/// query of the block. As a tensor of four dimensions, d_i, the few heads, s_q and h_i / few, that is one box.
// [dealt_maps]
template <class Shape> static IndexerMaps dealt_maps(const IndexerArgs& a) {
  constexpr int kDim = Shape::kDim, kHeads = Shape::kHeads, kQueries = Shape::kQueries, kFew = kDealt<Shape>;
  IndexerMaps maps = indexer_maps<Shape>(a);
  maps.q = ptx::make_tensor_map(a.q, {kDim, kFew, a.s_q, kHeads / kFew}, {kDim, kHeads * kDim, kFew * kDim},
                                {kDim, kFew, kQueries, kHeads / kFew}, Shape::kSwizzle);
  return maps;
}
template <class Shape>
DSA_DEVICE void copy_queries_dealt(QueryTile<Shape>& tile, float* weights, const IndexerMaps& maps, int block,
                                   ptx::mbarrier* full) {
  ptx::cp_async_bulk_tensor_load(tile.q, &maps.q, {0, 0, block * Shape::kQueries, 0}, full);
  ptx::cp_async_bulk_tensor_load(weights, &maps.weights, {block * kBlockColumns, 0}, full);
}
// [dealt_maps]

/// Copies `granules` times 64 keys, and 256 scales; completes key_bytes(granules) on `full`.
template <class Shape> DSA_DEVICE unsigned key_bytes(int granules) {
  return unsigned(granules * kGranule * Shape::kDim) + kTileKeys * unsigned(sizeof(float));
}
template <class Shape>
DSA_DEVICE void copy_keys(KeyTile<Shape>& tile, float* scale, const IndexerMaps& maps, int first_key, int granules,
                          ptx::mbarrier* full) {
#pragma unroll 1
  for (int i = 0; i < granules; ++i)
    ptx::cp_async_bulk_tensor_load(tile.k + i * kGranule * Shape::kDim, &maps.k, {0, first_key + i * kGranule}, full);
  ptx::cp_async_bulk_tensor_load(scale, &maps.k_scale, {first_key, 0}, full);
}

}  // namespace dsa

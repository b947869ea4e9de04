/// @file quantize_row.cuh
/// Rows in chunks of eight values, held by a few lanes of a warp: one read, 16 bytes at a time.
///
///     a row of 576 bf16, eight lanes:    lane 0 1 2 .. 7 | 0 1 2 .. 7 | ... nine times     128 bytes per turn, all requested
///                                                                                          before the first is looked at
#pragma once

#include "../device/ptx.cuh"
#include "quantize_scale.cuh"

namespace dsa {

constexpr int kChunk = 8;                          ///< values

/// kLanes lanes of a warp hold a row of up to kLanes * 8 * kChunks values.
template <int kLanes_, int kChunks_> struct RowSplit {
  static constexpr int kLanes = kLanes_, kChunks = kChunks_;
  static constexpr int kLongestRow = kLanes * kChunk * kChunks;
};
using ShortRows = RowSplit<8, 2>;                  ///< up to 128
using MiddleRows = RowSplit<8, 9>;                 ///< up to 576
using LongRows = RowSplit<32, 9>;                  ///< up to 2304

/// What a lane holds of a row: chunk c is columns (c * kLanes + lane) * 8 and on, as they lie in memory.
/// @tparam T float or bf16
template <class T, class Split> struct RowPiece {
  static constexpr int kWords = kChunk * int(sizeof(T)) / 4;   ///< of a chunk
  uint32_t word[Split::kChunks][kWords];
  DSA_DEVICE static int column(int c, int lane) { return (c * Split::kLanes + lane) * kChunk; }
  /// Value i of chunk c.
  DSA_DEVICE float value(int c, int i) const {
    if constexpr (sizeof(T) == 4) return __uint_as_float(word[c][i]);
    else return __uint_as_float(i % 2 ? word[c][i / 2] & 0xffff0000u : word[c][i / 2] << 16);
  }
};

/// The bits of the values at x that fill a word; those past the row's end, `left` values on, are zero.
DSA_DEVICE uint32_t word_at(const float* x, int left) { return left > 0 ? __float_as_uint(x[0]) : 0; }
DSA_DEVICE uint32_t word_at(const bf16* x, int left) {
  return uint32_t(left > 0 ? x[0].bits : 0) | uint32_t(left > 1 ? x[1].bits : 0) << 16;
}

/// A lane's piece of the row at x; zeros past its n values. @param aligned  rows begin at multiples of 16 bytes, n % 8 == 0
// [load_row]
template <class T, class Split>
DSA_DEVICE void load_row(RowPiece<T, Split>& piece, const T* x, int n, bool aligned, int lane) {
  constexpr int kWords = RowPiece<T, Split>::kWords, kPerWord = 4 / int(sizeof(T));
  if (aligned) {
#pragma unroll
    for (int c = 0; c < Split::kChunks; ++c)
#pragma unroll
      for (int i = 0; i < kWords; i += 4) {
        const int column = piece.column(c, lane) + i * kPerWord;
        uint4 words = make_uint4(0, 0, 0, 0);
        if (column < n) words = ptx::ld_global_nc_v4(x + column);
        piece.word[c][i] = words.x;
        piece.word[c][i + 1] = words.y;
        piece.word[c][i + 2] = words.z;
        piece.word[c][i + 3] = words.w;
      }
  } else {
#pragma unroll
    for (int c = 0; c < Split::kChunks; ++c)
#pragma unroll
      for (int i = 0; i < kWords; ++i) {
        const int column = piece.column(c, lane) + i * kPerWord;
        piece.word[c][i] = word_at(x + column, n - column);
      }
  }
}
// [load_row]

/// Over the whole row, in all its lanes.
// [row_amax]
template <class T, class Split> DSA_DEVICE float row_amax(const RowPiece<T, Split>& piece) {
  float amax[2] = {};                              // two chains
#pragma unroll
  for (int c = 0; c < Split::kChunks; ++c)
#pragma unroll
    for (int i = 0; i < kChunk; ++i) amax[i % 2] = larger_magnitude(amax[i % 2], piece.value(c, i));
  amax[0] = fmaxf(amax[0], amax[1]);
#pragma unroll
  for (int distance = Split::kLanes / 2; distance > 0; distance /= 2)
    amax[0] = fmaxf(amax[0], __shfl_xor_sync(0xffffffffu, amax[0], distance));
  return amax[0];
}
// [row_amax]

/// Stores divide(value) for a lane's piece.
// [store_row]
template <class T, class Split, class Divide>
DSA_DEVICE void store_row(e4m3* bytes, const RowPiece<T, Split>& piece, const Divide& divide, int n, bool aligned, int lane) {
  uint2 packed[Split::kChunks];
#pragma unroll
  for (int c = 0; c < Split::kChunks; ++c) {
    float x[kChunk];
#pragma unroll
    for (int i = 0; i < kChunk; ++i) x[i] = divide(piece.value(c, i));
    packed[c] = make_uint2(pack_e4m3x4(x[0], x[1], x[2], x[3]), pack_e4m3x4(x[4], x[5], x[6], x[7]));
    const int column = piece.column(c, lane);
    if (aligned && column < n) *reinterpret_cast<uint2*>(bytes + column) = packed[c];
  }
  if (aligned) return;
#pragma unroll
  for (int c = 0; c < Split::kChunks; ++c)
#pragma unroll
    for (int i = 0; i < kChunk; ++i) {
      const int column = piece.column(c, lane) + i;
      if (column < n) bytes[column] = e4m3{uint8_t((i < 4 ? packed[c].x : packed[c].y) >> i % 4 * 8)};
    }
}
// [store_row]

/// The pointers and the length allow whole chunks.
static inline bool rows_aligned(const QuantizeArgs& a) {
  const auto x = a.x_bf16 ? reinterpret_cast<uintptr_t>(a.x_bf16) : reinterpret_cast<uintptr_t>(a.x_f32);
  return a.n % kChunk == 0 && x % 16 == 0 && reinterpret_cast<uintptr_t>(a.bytes) % kChunk == 0;
}

constexpr int kRowThreads = 128;                   ///< of a CTA
template <class Split> constexpr int kRowsPerCta = kRowThreads / Split::kLanes;

/// f(Split{}) for the shortest split that holds a row.
template <class F> static cudaError_t with_row_split(const QuantizeArgs& a, const F& f) {
  if (a.n <= ShortRows::kLongestRow) return f(ShortRows{});
  if (a.n <= MiddleRows::kLongestRow) return f(MiddleRows{});
  return f(LongRows{});
}

static inline const char* row_split_unsupported(const QuantizeArgs& a) {
  if (a.n > LongRows::kLongestRow) return "n must be at most 2304: a row stays in the registers of a warp";
  if (a.rows > int64_t(0x7fffffff) * kRowsPerCta<LongRows>) return "rows must be below 2^33 (one CTA per 4 to 16)";
  return nullptr;
}

}  // namespace dsa

/// @file mla_products.cuh
/// The two products of attention on tiles in shared memory, as runs of wgmma. The functions issue; the kernel fences before,
/// commits and waits after.
#pragma once

#include "online_softmax.cuh"

namespace dsa {

/// S (+)= Q K^T over the column tiles first .. first + kTiles - 1, for the keys from row `first_key` of the K tiles on.
/// Both operands K-major: 16 of a tile's 64 columns are 32 bytes further inside the swizzled row.
/// @param scores  n = 64 keys: 32 registers; n = 32: 16
// [scores]
template <int kTiles = kQKTiles, int kCount>
DSA_DEVICE void issue_scores(float (&scores)[kCount], const ColumnTile* q, const ColumnTile* k, int first_key = 0,
                             bool accumulate = false) {
  const uint64_t a = ptx::matrix_descriptor(q, ptx::Swizzle::k128B, 16, 1024);
  const uint64_t b = ptx::matrix_descriptor(k->element + first_key * kTileColumns, ptx::Swizzle::k128B, 16, 1024);
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile)
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      const unsigned further = tile * kColumnTileBytes + 32 * step;
      const uint64_t a16 = ptx::descriptor_advance(a, further), b16 = ptx::descriptor_advance(b, further);
      const bool sum = accumulate || tile + step > 0;
      if constexpr (kCount == 16) ptx::wgmma_m64n32k16_bf16_ss<false, false>(scores, a16, b16, sum);
      else ptx::wgmma_m64n64k16_bf16_ss<false, false>(scores, a16, b16, sum);
    }
}
// [scores]

/// The descriptor of 64 keys by 256 columns of V, MN-major: 8 keys are one atom of 1024 bytes, the next 64 columns are
/// the next column tile.
DSA_DEVICE uint64_t v_descriptor(const ColumnTile* v) {
  return ptx::matrix_descriptor(v, ptx::Swizzle::k128B, kColumnTileBytes, 1024);
}

/// O (+)= P V for 256 columns, P from shared memory. 16 keys: two atoms further down V, 32 bytes further in P.
// [output]
DSA_DEVICE void issue_output(float (&out)[128], const ColumnTile& p, const ColumnTile* v, bool accumulate) {
  const uint64_t a = ptx::matrix_descriptor(&p, ptx::Swizzle::k128B, 16, 1024), b = v_descriptor(v);
#pragma unroll
  for (int step = 0; step < kTileKeys / 16; ++step)
    ptx::wgmma_m64n256k16_bf16_ss<false, true>(out, ptx::descriptor_advance(a, 32 * step),
                                               ptx::descriptor_advance(b, 2048 * step), accumulate || step > 0);
}
// [output]

/// The same, P from the registers of the warpgroup that made it.
DSA_DEVICE void issue_output(float (&out)[128], const uint32_t (&p)[4][4], const ColumnTile* v, bool accumulate) {
  const uint64_t b = v_descriptor(v);
#pragma unroll
  for (int step = 0; step < kTileKeys / 16; ++step)
    ptx::wgmma_m64n256k16_bf16_rs<true>(out, p[step], ptx::descriptor_advance(b, 2048 * step), accumulate || step > 0);
}

/// 64 heads by 256 columns of the output, from a warpgroup's accumulators through four column tiles of shared memory, so
/// that a warp writes whole rows of 128 bytes. @param first_column  of the 512
DSA_DEVICE void store_output(const SparseMlaFwdArgs& a, const HeadRows& w, int first_column, ColumnTile* tiles, int t,
                             const float (&out)[128]) {
  t %= 128;
#pragma unroll
  for (int step = 0; step < 16; ++step) {
    uint32_t registers[4];
    pack_fragment(out, step, registers);
    store_fragment(tiles[step / 4], t, step % 4, registers);
  }
  __syncwarp();                                       // a warp reads back the 16 rows that it wrote
  for (int i = t % 32; i < 16 * 4 * 8; i += 32) {
    const int row = t / 32 * 16 + i / 8 % 16, tile = i / 128, chunk = i % 8;
    if (row >= w.heads) continue;
    bf16* to = a.out + (w.head_row + row) * kDimV + first_column + tile * kTileColumns + chunk * 8;
    *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(chunk_address(tiles[tile], row, chunk));
  }
}

/// The same without shared memory: the four threads of a row exchange what they have, so that each holds 8 columns of 32.
DSA_DEVICE void store_output_from_registers(const SparseMlaFwdArgs& a, const HeadRows& w, int first_column, int t,
                                            const float (&out)[128]) {
  const int q = t % 4;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int row = accumulator_row(t, h);
    bf16* to = a.out + (w.head_row + row) * kDimV + first_column + 8 * q;
#pragma unroll
    for (int k = 0; k < 8; ++k) {                     // columns 32 k .. 32 k + 31
      uint32_t x[4];                                  // x[i]: columns 32 k + 8 i + 2 q and the next
#pragma unroll
      for (int i = 0; i < 4; ++i) x[i] = pack_bf16x2(out[16 * k + 4 * i + 2 * h], out[16 * k + 4 * i + 2 * h + 1]);
      // A 4 x 4 transposition in two steps: with the thread beside, then with the one two further.
      const uint32_t odd = __shfl_xor_sync(0xffffffffu, q % 2 ? x[0] : x[1], 1);
      const uint32_t odd2 = __shfl_xor_sync(0xffffffffu, q % 2 ? x[2] : x[3], 1);
      const uint32_t a0 = q % 2 ? odd : x[0], a1 = q % 2 ? x[1] : odd, b0 = q % 2 ? odd2 : x[2], b1 = q % 2 ? x[3] : odd2;
      const uint32_t far0 = __shfl_xor_sync(0xffffffffu, q < 2 ? b0 : a0, 2);
      const uint32_t far1 = __shfl_xor_sync(0xffffffffu, q < 2 ? b1 : a1, 2);
      const uint4 row_piece = q < 2 ? make_uint4(a0, a1, far0, far1) : make_uint4(far0, far1, b0, b1);
      if (row < w.heads) *reinterpret_cast<uint4*>(to + 32 * k) = row_piece;
    }
  }
}

/// The end of the row h of a thread; of none, past the last head. @param m  what l is relative to
DSA_DEVICE RowEnd row_end(const SparseMlaFwdArgs& a, const HeadRows& w, int t, int h, float m, float l) {
  const int row = accumulator_row(t, h);
  if (row >= w.heads) return {0, 0};
  return end_row(m, l, a.sm_scale, a.attn_sink ? a.attn_sink + w.first_head + row : nullptr);
}

/// The same, and stores lse and max_logits; one thread of the four that share a row stores.
/// @param largest  raw score: m, unless a kernel works with another reference
DSA_DEVICE RowEnd store_row_end(const SparseMlaFwdArgs& a, const HeadRows& w, int t, int h, float m, float l, float largest,
                                bool store) {
  const RowEnd end = row_end(a, w, t, h, m, l);
  const int row = accumulator_row(t, h);
  if (store && t % 4 == 0 && row < w.heads) {
    a.lse[w.head_row + row] = end.lse;
    a.max_logits[w.head_row + row] = largest * a.sm_scale;
  }
  return end;
}

/// Why the tensor-core rungs cannot run a problem, or nullptr.
static inline const char* tensor_core_unsupported(const SparseMlaFwdArgs& a) {
  if (a.fp8) return "bf16 only";
  if (!(a.sm_scale > 0)) return "sm_scale must be positive: the largest raw score is taken for the largest logit";
  if (mla_work_count(a) > 0x7fffffff) return "b * s_q * (head tiles) must be below 2^31";
  return nullptr;
}

}  // namespace dsa

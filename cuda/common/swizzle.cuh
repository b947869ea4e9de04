/// @file swizzle.cuh
/// Where the hardware's swizzle modes put a byte, for kernels that write swizzled tiles by hand.
///
///     128B swizzle, 8 rows x 8 chunks of 16 bytes: chunk c of row r lies at chunk c ^ r. The digits are c.
///
///         row 0   0 1 2 3 4 5 6 7
///         row 1   1 0 3 2 5 4 7 6        A column of chunks, which is what ldmatrix and the tensor cores read,
///         row 2   2 3 0 1 6 7 4 5        touches every bank group once.
///         row 3   3 2 1 0 7 6 5 4
///         ...
///
/// The hardware permutes address bits, so the offsets here are from a place aligned to the mode's atom of 8 rows: 1024,
/// 512 or 256 bytes.
#pragma once

#include "../device/ptx/address.cuh"

namespace dsa {

/// Offset of a byte with 128-byte rows: bits 4-6 (the chunk) ^= bits 7-9 (the row).
__host__ __device__ constexpr unsigned swizzle_128B(unsigned byte_offset) {
  return byte_offset ^ (byte_offset >> 3 & 0x70);
}
/// With 64-byte rows: bits 4-5 ^= bits 7-8, so pairs of rows share a pattern.
__host__ __device__ constexpr unsigned swizzle_64B(unsigned byte_offset) {
  return byte_offset ^ (byte_offset >> 3 & 0x30);
}
/// With 32-byte rows: bit 4 ^= bit 7, so four rows share a pattern.
__host__ __device__ constexpr unsigned swizzle_32B(unsigned byte_offset) {
  return byte_offset ^ (byte_offset >> 3 & 0x10);
}

/// By mode; kNone leaves the offset as it is.
__host__ __device__ constexpr unsigned swizzle(ptx::Swizzle mode, unsigned byte_offset) {
  switch (mode) {
    case ptx::Swizzle::k32B: return swizzle_32B(byte_offset);
    case ptx::Swizzle::k64B: return swizzle_64B(byte_offset);
    case ptx::Swizzle::k128B: return swizzle_128B(byte_offset);
    default: return byte_offset;
  }
}

namespace detail {
/// Each 16-byte chunk of the atom goes to a chunk of the atom, no two to the same one, and going twice leads back;
/// bytes stay inside their chunk.
constexpr bool permutes_atom(ptx::Swizzle mode) {
  const unsigned atom = 8 * ptx::swizzle_bytes(mode);
  bool taken[64] = {};
  for (unsigned offset = 0; offset < atom; ++offset) {
    const unsigned to = swizzle(mode, offset);
    if (to >= atom || swizzle(mode, to) != offset || to % 16 != offset % 16) return false;
    if (offset % 16 == 0) {
      if (taken[to / 16]) return false;
      taken[to / 16] = true;
    }
  }
  return true;
}
}  // namespace detail
static_assert(detail::permutes_atom(ptx::Swizzle::k32B));
static_assert(detail::permutes_atom(ptx::Swizzle::k64B));
static_assert(detail::permutes_atom(ptx::Swizzle::k128B));
static_assert(swizzle_128B(3 * 128 + 5 * 16) == 3 * 128 + (5 ^ 3) * 16);
static_assert(swizzle_64B(3 * 64 + 2 * 16) == 3 * 64 + (0b10 ^ 0b01) * 16);
static_assert(swizzle_32B(5 * 32 + 0 * 16) == 5 * 32 + (0b00 ^ 0b01) * 16);

}  // namespace dsa

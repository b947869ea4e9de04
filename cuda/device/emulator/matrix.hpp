/// @file matrix.hpp
/// Layouts and arithmetic of wgmma, as plain functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "hopper.hpp"

namespace dsa::emulator {

/// What a swizzle mode of `width` bytes (128, 64, 32, or 16 for none) makes of a shared address: bits 4 and up are combined with
/// bits 7 and up (PTX: shared memory matrix layout; tensor-map swizzle modes).
constexpr uint32_t swizzled_address(uint32_t address, uint32_t width) { return address ^ (address >> 7 & (width / 16 - 1)) << 4; }

/// The fields of a shared-memory matrix descriptor (PTX: wgmma, matrix-descriptor format).
struct MatrixDescriptor {
  uint32_t start;           ///< shared address, bytes
  uint32_t leading;         ///< leading dimension byte offset
  uint32_t stride;          ///< stride dimension byte offset
  unsigned base_offset;
  unsigned swizzle_bytes;   ///< 128, 64, 32, or 16 for none
};
MatrixDescriptor decode(uint64_t descriptor);
/// What is wrong with the descriptor's bits, or "".
std::string illegal(uint64_t descriptor);

/// Shared address of element (row, k) of an operand whose elements have `bytes` bytes: row is the index along M or N.
uint32_t element_address(const MatrixDescriptor& d, bool mn_major, unsigned bytes, unsigned row, unsigned k);

/// Row and column of accumulator register i of thread t of the warpgroup (PTX: wgmma, register fragments).
struct Place { unsigned row, column; };
constexpr Place accumulator_place(unsigned t, unsigned i) {
  return {t / 32 * 16 + t % 32 / 4 + (i / 2 % 2) * 8, i / 4 * 8 + t % 4 * 2 + i % 2};
}
/// Row and k of byte b (0 to 15) of the four A registers of thread t.
constexpr Place a_register_place(unsigned t, unsigned b, unsigned element_bytes) {
  const unsigned r = b / 4, per_register = 4 / element_bytes;
  return {t / 32 * 16 + t % 32 / 4 + (r % 2) * 8,
          r / 2 * (4 * per_register) + t % 4 * per_register + b % 4 / element_bytes};
}

/// How a tensor core of Hopper adds: all products of an instruction and the accumulator are aligned to the largest exponent
/// among them, cut (towards zero) `fraction_bits` below it, added exactly, and cut to `result_bits` of fraction. Found by
/// probing an H200 (tests/probe, wgmma/arithmetic), as in MMA-Sim (arXiv 2511.10909).
struct Adder { int fraction_bits, result_bits; };
inline constexpr Adder kBf16Adder{25, 23}, kE4m3Adder{13, 13};

/// d[rows][n] (+)= a[rows][k] b[n][k]^T, all row-major.
void multiply_accumulate(float* d, const float* a, const float* b, unsigned rows, unsigned n, unsigned k,
                         bool accumulate, Adder adder);

}  // namespace dsa::emulator

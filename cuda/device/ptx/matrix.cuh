/// @file matrix.cuh
/// ldmatrix and stmatrix: 8x8 matrices of 16-bit elements between shared memory and the registers of a warp.
///
/// Lane 8i + r gives the address of row r (16 bytes, aligned to 16) of matrix i; lanes past the last matrix give an
/// address that is not used. Register i of lane l then holds matrix i, row l/4, columns 2(l%4) and 2(l%4)+1, the lower
/// column in the lower half; with `.trans` it holds row and column exchanged: rows 2(l%4) and 2(l%4)+1 of column l/4.
/// That is the fragment layout of the tensor cores (wgmma.cuh).
///
/// All 32 lanes of a warp, converged; generic proxy. PTX ISA: "Warp Level Matrix Load Instruction: ldmatrix" and
/// "Warp Level Matrix Store Instruction: stmatrix".
#pragma once

#include "address.cuh"

namespace dsa::ptx {

/// `ldmatrix.sync.aligned.m8n8.x1.shared.b16`
DSA_DEVICE void ldmatrix_x1(uint32_t& r, const void* row) {
#if defined(DSA_EMULATOR)
  emulator::ldmatrix(&r, 1, false, row);
#else
  asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];" : "=r"(r) : "r"(smem_address(row)) : "memory");
#endif
}

/// `ldmatrix.sync.aligned.m8n8.x2.shared.b16`
DSA_DEVICE void ldmatrix_x2(uint32_t (&r)[2], const void* row) {
#if defined(DSA_EMULATOR)
  emulator::ldmatrix(r, 2, false, row);
#else
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
               : "=r"(r[0]), "=r"(r[1])
               : "r"(smem_address(row))
               : "memory");
#endif
}

/// `ldmatrix.sync.aligned.m8n8.x4.shared.b16`
DSA_DEVICE void ldmatrix_x4(uint32_t (&r)[4], const void* row) {
#if defined(DSA_EMULATOR)
  emulator::ldmatrix(r, 4, false, row);
#else
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(smem_address(row))
               : "memory");
#endif
}

/// `ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16`
DSA_DEVICE void ldmatrix_x1_trans(uint32_t& r, const void* row) {
#if defined(DSA_EMULATOR)
  emulator::ldmatrix(&r, 1, true, row);
#else
  asm volatile("ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16 {%0}, [%1];"
               : "=r"(r)
               : "r"(smem_address(row))
               : "memory");
#endif
}

/// `ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16`
DSA_DEVICE void ldmatrix_x2_trans(uint32_t (&r)[2], const void* row) {
#if defined(DSA_EMULATOR)
  emulator::ldmatrix(r, 2, true, row);
#else
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
               : "=r"(r[0]), "=r"(r[1])
               : "r"(smem_address(row))
               : "memory");
#endif
}

/// `ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16`
DSA_DEVICE void ldmatrix_x4_trans(uint32_t (&r)[4], const void* row) {
#if defined(DSA_EMULATOR)
  emulator::ldmatrix(r, 4, true, row);
#else
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(smem_address(row))
               : "memory");
#endif
}

/// `stmatrix.sync.aligned.m8n8.x1.shared.b16`
DSA_DEVICE void stmatrix_x1(void* row, uint32_t r) {
#if defined(DSA_EMULATOR)
  emulator::stmatrix(row, &r, 1, false);
#else
  asm volatile("stmatrix.sync.aligned.m8n8.x1.shared.b16 [%0], {%1};" ::"r"(smem_address(row)), "r"(r) : "memory");
#endif
}

/// `stmatrix.sync.aligned.m8n8.x2.shared.b16`
DSA_DEVICE void stmatrix_x2(void* row, const uint32_t (&r)[2]) {
#if defined(DSA_EMULATOR)
  emulator::stmatrix(row, r, 2, false);
#else
  asm volatile("stmatrix.sync.aligned.m8n8.x2.shared.b16 [%0], {%1, %2};" ::"r"(smem_address(row)), "r"(r[0]), "r"(r[1])
               : "memory");
#endif
}

/// `stmatrix.sync.aligned.m8n8.x4.shared.b16`
DSA_DEVICE void stmatrix_x4(void* row, const uint32_t (&r)[4]) {
#if defined(DSA_EMULATOR)
  emulator::stmatrix(row, r, 4, false);
#else
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(smem_address(row)), "r"(r[0]),
               "r"(r[1]), "r"(r[2]), "r"(r[3])
               : "memory");
#endif
}

/// `stmatrix.sync.aligned.m8n8.x1.trans.shared.b16`
DSA_DEVICE void stmatrix_x1_trans(void* row, uint32_t r) {
#if defined(DSA_EMULATOR)
  emulator::stmatrix(row, &r, 1, true);
#else
  asm volatile("stmatrix.sync.aligned.m8n8.x1.trans.shared.b16 [%0], {%1};" ::"r"(smem_address(row)), "r"(r)
               : "memory");
#endif
}

/// `stmatrix.sync.aligned.m8n8.x2.trans.shared.b16`
DSA_DEVICE void stmatrix_x2_trans(void* row, const uint32_t (&r)[2]) {
#if defined(DSA_EMULATOR)
  emulator::stmatrix(row, r, 2, true);
#else
  asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" ::"r"(smem_address(row)), "r"(r[0]),
               "r"(r[1])
               : "memory");
#endif
}

/// `stmatrix.sync.aligned.m8n8.x4.trans.shared.b16`
DSA_DEVICE void stmatrix_x4_trans(void* row, const uint32_t (&r)[4]) {
#if defined(DSA_EMULATOR)
  emulator::stmatrix(row, r, 4, true);
#else
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(smem_address(row)),
               "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
               : "memory");
#endif
}

}  // namespace dsa::ptx

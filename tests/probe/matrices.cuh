/// @file matrices.cuh
/// ldmatrix and stmatrix, and the transposition of FP8 V tiles that is built on them.
#pragma once

#include "products.cuh"

namespace dsa::probe {

// ---- ldmatrix, stmatrix ---------------------------------------------------------------------------------------------
struct MatrixShared {
  alignas(1024) unsigned char rows[32][16];
};

/// The row whose address a lane gives; a lane's own number would hide which lanes count.
__host__ __device__ constexpr unsigned row_of_lane(unsigned lane) { return (lane * 5 + 3) % 32; }

template <int kCount, bool kTransposed>
static __global__ void load_matrices(const unsigned char* image, uint32_t* out) {
  MatrixShared& s = shared_memory<MatrixShared>();
  fill_shared(s.rows, image, sizeof s.rows);
  const void* row = s.rows[row_of_lane(threadIdx.x)];
  uint32_t r[kCount];
  if constexpr (kCount == 1) kTransposed ? ptx::ldmatrix_x1_trans(r[0], row) : ptx::ldmatrix_x1(r[0], row);
  else if constexpr (kCount == 2) kTransposed ? ptx::ldmatrix_x2_trans(r, row) : ptx::ldmatrix_x2(r, row);
  else kTransposed ? ptx::ldmatrix_x4_trans(r, row) : ptx::ldmatrix_x4(r, row);
  for (int i = 0; i < kCount; ++i) out[threadIdx.x * kCount + i] = r[i];
}

template <int kCount, bool kTransposed>
static __global__ void store_matrices(const unsigned char* image, uint32_t* out) {
  MatrixShared& s = shared_memory<MatrixShared>();
  fill_shared(s.rows, image, sizeof s.rows);
  void* row = s.rows[row_of_lane(threadIdx.x)];
  uint32_t r[kCount];
  for (int i = 0; i < kCount; ++i)
    r[i] = 0x10000 * (2 * (threadIdx.x * kCount + i) + 1) + 2 * (threadIdx.x * kCount + i);
  if constexpr (kCount == 1) kTransposed ? ptx::stmatrix_x1_trans(row, r[0]) : ptx::stmatrix_x1(row, r[0]);
  else if constexpr (kCount == 2) kTransposed ? ptx::stmatrix_x2_trans(row, r) : ptx::stmatrix_x2(row, r);
  else kTransposed ? ptx::stmatrix_x4_trans(row, r) : ptx::stmatrix_x4(row, r);
  dump_shared(out, s.rows, sizeof s.rows);
}

/// Calls visit(lane, register, half, row address's lane, column): which element of which row a half register is.
template <class Visit> void visit_matrices(unsigned count, bool transposed, const Visit& visit) {
  for (unsigned lane = 0; lane < 32; ++lane)
    for (unsigned i = 0; i < count; ++i)
      for (unsigned half = 0; half < 2; ++half) {
        const unsigned row = transposed ? 2 * (lane % 4) + half : lane / 4;
        const unsigned column = transposed ? lane / 4 : 2 * (lane % 4) + half;
        visit(lane, i, half, 8 * i + row, column);
      }
}

template <int kCount, bool kTransposed> void probe_matrix() {
  const std::string suffix = "_x" + std::to_string(kCount) + (kTransposed ? "_trans" : "");
  std::vector<uint16_t> rows(32 * 8);
  for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = uint16_t(0x1000 + i);
  std::vector<unsigned char> image(512);
  std::memcpy(image.data(), rows.data(), 512);

  if (const std::string name = "ldmatrix" + suffix; is_wanted(name)) {
    std::vector<uint32_t> model(32 * kCount);
    visit_matrices(kCount, kTransposed,
                   [&](unsigned lane, unsigned i, unsigned half, unsigned address, unsigned column) {
                     model[lane * kCount + i] |= uint32_t(rows[row_of_lane(address) * 8 + column]) << (16 * half);
                   });
    const Array<unsigned char> in(image);
    const Array<uint32_t> out(32 * kCount);
    if (run<MatrixShared>(name, load_matrices<kCount, kTransposed>, 1, 32, in.data(), out.data())) {
      print_hash(name, out.read(), model);
      if (kCount == 1) print_words(name + "/registers", out.read());
    }
  }
  if (const std::string name = "stmatrix" + suffix; is_wanted(name)) {
    std::vector<uint16_t> halves = rows;
    visit_matrices(kCount, kTransposed,
                   [&](unsigned lane, unsigned i, unsigned half, unsigned address, unsigned column) {
                     halves[row_of_lane(address) * 8 + column] = uint16_t(2 * (lane * kCount + i) + half);
                   });
    std::vector<uint32_t> model(128);
    std::memcpy(model.data(), halves.data(), 512);
    const Array<unsigned char> in(image);
    const Array<uint32_t> out(128);
    if (run<MatrixShared>(name, store_matrices<kCount, kTransposed>, 1, 32, in.data(), out.data())) {
      print_hash(name, out.read(), model);
      if (kCount == 1) print_words(name + "/memory", out.read());
    }
  }
}

// ---- FP8: O^T = V^T P^T without a transposed V --------------------------------------------------------------------
// 64 keys, 64 heads, a slice of 64 columns of V. A = V^T comes from the tile of V by ldmatrix.trans and byte_permute,
// B = P lies in shared memory as stmatrix writes it, with its keys in the order that A's happen to have.

struct TransposeShared {
  alignas(1024) unsigned char v[64 * 128];       ///< [key][128 columns], 128B swizzle
  alignas(1024) unsigned char p[64 * 64];        ///< [head][key, permuted], 64B swizzle
};

static __global__ void __launch_bounds__(128, 1)
    multiply_transposed(const unsigned char* v_image, const float* p, int first_column, float* out,
                        unsigned char* p_out) {
  TransposeShared& s = shared_memory<TransposeShared>();
  fill_shared(s.v, v_image, sizeof s.v);
  const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, q = lane % 4;

  // This thread's part of P, as an m64n64 accumulator would hold it: rows 16 warp + 8 h + g, columns 8 j + 2 q + i.
#pragma unroll
  for (unsigned h = 0; h < 2; ++h) {
    const float* row = p + (16 * warp + 8 * h + g) * 64 + 2 * q;
    uint32_t r[4];
#pragma unroll
    for (unsigned j = 0; j < 4; ++j) r[j] = pack_e4m3x4(row[16 * j], row[16 * j + 1], row[16 * j + 8], row[16 * j + 9]);
    ptx::stmatrix_x4(s.p + swizzle_64B((16 * warp + 8 * h + lane % 8) * 64 + lane / 8 * 16), r);
  }
  ptx::fence_proxy_async_shared();
  __syncthreads();

  float d[32];
#pragma unroll
  for (float& x : d) x = 0;
  for (unsigned step = 0; step < 2; ++step) {
    uint32_t r[4], a[4];
    ptx::ldmatrix_x4_trans(r, s.v + swizzle_128B((32 * step + lane) * 128 + first_column + 16 * warp));
    a[0] = ptx::byte_permute(r[0], r[1], 0x6420);   // the even columns' bytes
    a[1] = ptx::byte_permute(r[0], r[1], 0x7531);   // the odd columns'
    a[2] = ptx::byte_permute(r[2], r[3], 0x6420);
    a[3] = ptx::byte_permute(r[2], r[3], 0x7531);
    ptx::wgmma_fence();
    ptx::wgmma_m64n64k32_e4m3_rs(d, a, ptx::matrix_descriptor(s.p + 32 * step, ptx::Swizzle::k64B, 0, 512), true);
    ptx::wgmma_commit_group();
    ptx::wgmma_wait_group<0>();
    ptx::wgmma_keep(a);
    ptx::wgmma_keep(d);
  }
#pragma unroll
  for (int i = 0; i < 32; ++i) out[threadIdx.x * 32 + i] = d[i];
  dump_shared(p_out, s.p, sizeof s.p);
}

inline void probe_fp8_transpose() {
  for (const int first_column : {0, 64}) {
    const std::string name = "fp8_transpose/columns" + std::to_string(first_column);
    if (!is_wanted(name)) continue;
    std::vector<float> v(64 * 128), p(64 * 64);
    for (std::size_t i = 0; i < v.size(); ++i) v[i] = float(int(scramble(uint32_t(i) + 77) % 17) - 8);
    for (std::size_t i = 0; i < p.size(); ++i) p[i] = float(int(scramble(uint32_t(i) + 78) % 17) - 8);
    std::vector<unsigned char> image(64 * 128), p_model(64 * 64);
    for (unsigned key = 0; key < 64; ++key)
      for (unsigned column = 0; column < 128; ++column)
        image[swizzle_128B(key * 128 + column)] = to_e4m3(v[key * 128 + column]).bits;
    for (unsigned head = 0; head < 64; ++head) {
      for (unsigned at = 0; at < 64; ++at) {       // byte 16 j + 4 q + b holds key 16 j + 2 q + b % 2 + 8 (b / 2)
        const unsigned b = at % 4, key = at / 16 * 16 + at % 16 / 4 * 2 + b % 2 + b / 2 * 8;
        p_model[swizzle_64B(head * 64 + at)] = to_e4m3(p[head * 64 + key]).bits;
      }
    }
    std::vector<float> model(64 * 64);
    for (unsigned t = 0; t < 128; ++t) {
      for (unsigned i = 0; i < 32; ++i) {          // rows g and g + 8 of a warp's 16 are columns 2 g and 2 g + 1 of V
        const unsigned column = t / 32 * 16 + t % 32 / 4 * 2 + i / 2 % 2, head = i / 4 * 8 + t % 4 * 2 + i % 2;
        float sum = 0;
        for (unsigned key = 0; key < 64; ++key) sum += p[head * 64 + key] * v[key * 128 + first_column + column];
        model[t * 32 + i] = sum;
      }
    }
    const Array<unsigned char> device_v(image), device_p_out(64 * 64);
    const Array<float> device_p(p), out(64 * 64);
    if (!run<TransposeShared>(name, multiply_transposed, 1, 128, device_v.data(), device_p.data(), first_column,
                              out.data(), device_p_out.data()))
      continue;
    std::vector<float> d = out.read();
    for (float& x : d) x += 0.0f;
    print_hash(name + "/p", device_p_out.read(), p_model);
    print_hash(name + "/out", d, model);
  }
}

inline void probe_matrices() {
  probe_matrix<1, false>();
  probe_matrix<1, true>();
  probe_matrix<2, false>();
  probe_matrix<2, true>();
  probe_matrix<4, false>();
  probe_matrix<4, true>();
  probe_fp8_transpose();
}

}  // namespace dsa::probe

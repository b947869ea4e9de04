/// @file products.cuh
/// wgmma: fragments of every shape, operand layouts of every mode, how many bits a sum keeps.
///
/// The data are small integers, so every order of summation gives the same bits. The model is the plain matrix product
/// and the layout formulas of cuda/device/ptx/wgmma.cuh.
#pragma once

#include "probe.hpp"

namespace dsa::probe {

using ptx::Swizzle;

// ---- Device -------------------------------------------------------------------------------------------------------
inline constexpr int kSteps = 4;                 ///< instructions of one product, accumulating
inline constexpr unsigned kImage = 96 * 1024;

struct ProductShared {
  alignas(1024) unsigned char image[kImage];
};

struct Operand {
  Swizzle mode;
  unsigned leading, stride;
  unsigned start[kSteps];                        ///< offset in the image, per step
};
struct ProductArgs {
  const unsigned char* image;                    ///< of shared memory
  unsigned image_bytes;
  Operand a, b;
  const uint32_t* a_registers;                   ///< [kSteps][128][4]
  float* d;                                      ///< [128][n / 2]
};

template <int n> struct Wgmma;
#define DSA_PROBE_WGMMA(n)                                                                                           \
  template <> struct Wgmma<n> {                                                                                      \
    template <bool kE4m3, bool kAMnMajor, bool kBMnMajor>                                                            \
    DSA_DEVICE static void multiply(float (&d)[n / 2], uint64_t a, uint64_t b, bool accumulate) {                    \
      if constexpr (kE4m3) ptx::wgmma_m64n##n##k32_e4m3_ss(d, a, b, accumulate);                                     \
      else ptx::wgmma_m64n##n##k16_bf16_ss<kAMnMajor, kBMnMajor>(d, a, b, accumulate);                               \
    }                                                                                                                \
    template <bool kE4m3, bool kBMnMajor>                                                                            \
    DSA_DEVICE static void multiply(float (&d)[n / 2], const uint32_t (&a)[4], uint64_t b, bool accumulate) {        \
      if constexpr (kE4m3) ptx::wgmma_m64n##n##k32_e4m3_rs(d, a, b, accumulate);                                     \
      else ptx::wgmma_m64n##n##k16_bf16_rs<kBMnMajor>(d, a, b, accumulate);                                          \
    }                                                                                                                \
  };
DSA_PROBE_WGMMA(32)
DSA_PROBE_WGMMA(64)
DSA_PROBE_WGMMA(96)
DSA_PROBE_WGMMA(128)
DSA_PROBE_WGMMA(192)
DSA_PROBE_WGMMA(256)
#undef DSA_PROBE_WGMMA

template <int n, bool kE4m3, bool kRegisters, bool kAMnMajor, bool kBMnMajor>
static __global__ void __launch_bounds__(128, 1) multiply(const ProductArgs p) {
  ProductShared& s = shared_memory<ProductShared>();
  fill_shared(s.image, p.image, p.image_bytes);
  float d[n / 2];
#pragma unroll
  for (float& x : d) x = NAN;                    // the first step must not look at it
  for (int step = 0; step < kSteps; ++step) {
    const uint64_t b = ptx::matrix_descriptor(s.image + p.b.start[step], p.b.mode, p.b.leading, p.b.stride);
    if constexpr (kRegisters) {
      uint32_t a[4];
      for (int i = 0; i < 4; ++i) a[i] = p.a_registers[(step * 128 + threadIdx.x) * 4 + i];
      ptx::wgmma_fence();
      Wgmma<n>::template multiply<kE4m3, kBMnMajor>(d, a, b, step > 0);
      ptx::wgmma_commit_group();
      ptx::wgmma_wait_group<0>();
      ptx::wgmma_keep(a);
    } else {
      const uint64_t a = ptx::matrix_descriptor(s.image + p.a.start[step], p.a.mode, p.a.leading, p.a.stride);
      ptx::wgmma_fence();
      Wgmma<n>::template multiply<kE4m3, kAMnMajor, kBMnMajor>(d, a, b, step > 0);
      ptx::wgmma_commit_group();
      ptx::wgmma_wait_group<0>();
    }
    ptx::wgmma_keep(d);
  }
#pragma unroll
  for (int i = 0; i < n / 2; ++i) p.d[threadIdx.x * (n / 2) + i] = d[i];
}

// ---- Host: layouts ------------------------------------------------------------------------------------------------
/// A whole operand tile in the image: as the descriptor's formulas, and how it goes on along K.
struct Tile {
  bool mn_major = false;
  Swizzle mode = Swizzle::kNone;
  unsigned leading = 0, stride = 0;
  unsigned base = 0;                             ///< where it starts in the image: a multiple of 1024
  unsigned next_row = 0;                         ///< K-major with swizzle: from one column of atoms to the next
  unsigned written_leading = ~0u;                ///< what goes into the descriptor instead, where it should not be read

  unsigned width() const { return ptx::swizzle_bytes(mode); }
  bool none() const { return mode == Swizzle::kNone; }
  /// Before the swizzle.
  unsigned offset(unsigned element_bytes, unsigned row, unsigned k) const {
    const unsigned w = width();
    if (mn_major) {
      const unsigned y = row * element_bytes;
      return base + y % w + k % 8 * w + y / w * (none() ? stride : leading) + k / 8 * (none() ? leading : stride);
    }
    const unsigned x = k * element_bytes;
    return base + x % w + row % 8 * w + row / 8 * stride + x / w * (none() ? leading : next_row);
  }
  unsigned place(unsigned element_bytes, unsigned row, unsigned k) const {
    return swizzle(mode, offset(element_bytes, row, k));
  }
  Operand operand(unsigned element_bytes, unsigned k_per_step) const {
    Operand o{mode, written_leading == ~0u ? leading : written_leading, stride, {}};
    for (unsigned step = 0; step < kSteps; ++step) o.start[step] = offset(element_bytes, 0, step * k_per_step);
    return o;
  }
};

/// K-major, rows of the mode's width packed into atoms of 8, `rows` of them, one such column of atoms after the other.
inline Tile k_major(Swizzle mode, unsigned rows, unsigned base) {
  const unsigned atom = 8 * ptx::swizzle_bytes(mode);
  Tile t{false, mode, 0, atom, base, rows / 8 * atom};
  if (mode == Swizzle::kNone) t.leading = rows / 8 * atom;
  return t;
}
/// MN-major, packed: along K first, or along the rows first.
inline Tile mn_major(Swizzle mode, unsigned rows, unsigned k, unsigned base, bool k_first) {
  const unsigned w = ptx::swizzle_bytes(mode), atom = 8 * w;
  const unsigned along_rows = k_first ? k / 8 * atom : atom, along_k = k_first ? atom : rows * 2 / w * atom;
  return mode == Swizzle::kNone ? Tile{true, mode, along_k, along_rows, base}
                                : Tile{true, mode, along_rows, along_k, base};
}

// ---- Host: one product --------------------------------------------------------------------------------------------
/// Elements of the two matrices, exact in bf16 and e4m3.
struct Matrices {
  unsigned n, k;
  std::vector<float> a, b;                       ///< [64][k], [n][k]

  Matrices(unsigned n_, unsigned k_, uint32_t seed) : n(n_), k(k_), a(64 * k_), b(n_ * k_) {
    for (std::size_t i = 0; i < a.size(); ++i) a[i] = float(int(scramble(uint32_t(i) + seed) % 9) - 4);
    for (std::size_t i = 0; i < b.size(); ++i) b[i] = float(int(scramble(uint32_t(i) + seed + 0x51ed270bu) % 9) - 4);
  }
  /// The accumulators of every thread: register i of thread t at [t * n / 2 + i].
  std::vector<float> fragments() const {
    std::vector<float> d(64 * n);
    for (unsigned t = 0; t < 128; ++t) {
      for (unsigned i = 0; i < n / 2; ++i) {
        const unsigned row = t / 32 * 16 + i / 2 % 2 * 8 + t % 32 / 4, column = i / 4 * 8 + t % 4 * 2 + i % 2;
        double sum = 0;
        for (unsigned x = 0; x < k; ++x) sum += double(a[row * k + x]) * double(b[column * k + x]);
        d[t * (n / 2) + i] = float(sum);
      }
    }
    return d;
  }
};

inline void put(unsigned char* to, float value, bool as_e4m3) {
  if (as_e4m3) {
    *to = to_e4m3(value).bits;
  } else {
    const uint16_t bits = to_bf16(value).bits;
    std::memcpy(to, &bits, 2);
  }
}

/// A as register fragments: [kSteps][128][4].
inline std::vector<uint32_t> a_fragments(const Matrices& m, bool as_e4m3) {
  std::vector<uint32_t> registers(kSteps * 128 * 4);
  const unsigned per_register = as_e4m3 ? 4 : 2, per_step = as_e4m3 ? 32 : 16;
  for (unsigned step = 0; step < kSteps; ++step) {
    for (unsigned t = 0; t < 128; ++t) {
      for (unsigned r = 0; r < 4; ++r) {
        for (unsigned i = 0; i < per_register; ++i) {
          const unsigned row = t / 32 * 16 + r % 2 * 8 + t % 32 / 4;
          const unsigned k = step * per_step + r / 2 * (4 * per_register) + t % 4 * per_register + i;
          put(reinterpret_cast<unsigned char*>(&registers[(step * 128 + t) * 4 + r]) + i * (4 / per_register),
              m.a[row * m.k + k], as_e4m3);
        }
      }
    }
  }
  return registers;
}

/// One product on the device: its accumulators, empty when the launch failed.
template <int n, bool kE4m3, bool kRegisters, bool kAMnMajor, bool kBMnMajor>
std::vector<float> product(const std::string& name, const Matrices& m, const Tile& a, const Tile& b) {
  constexpr unsigned kBytes = kE4m3 ? 1 : 2;
  // What no element of the tiles covers must not be read; 0xff is a NaN in both types.
  std::vector<unsigned char> image(kImage, 0xff);
  if (!kRegisters)
    for (unsigned row = 0; row < 64; ++row)
      for (unsigned k = 0; k < m.k; ++k) put(&image[a.place(kBytes, row, k)], m.a[row * m.k + k], kE4m3);
  for (unsigned row = 0; row < n; ++row)
    for (unsigned k = 0; k < m.k; ++k) put(&image[b.place(kBytes, row, k)], m.b[row * m.k + k], kE4m3);
  const Array<unsigned char> device_image(image);
  const Array<uint32_t> registers(a_fragments(m, kE4m3));
  const Array<float> d(std::size_t(64 * n));
  const ProductArgs args{device_image.data(),           kImage,           a.operand(kBytes, 32 / kBytes),
                         b.operand(kBytes, 32 / kBytes), registers.data(), d.data()};
  if (!run<ProductShared>(name, multiply<n, kE4m3, kRegisters, kAMnMajor, kBMnMajor>, 1, 128, args)) return {};
  std::vector<float> values = d.read();
  for (float& x : values) x += 0.0f;             // -0 and 0 are the same here
  return values;
}

template <int n, bool kE4m3, bool kRegisters, bool kAMnMajor = false, bool kBMnMajor = false>
void check_product(const std::string& name, const Tile& a, const Tile& b, uint32_t seed, bool compared = true) {
  if (!is_wanted(name)) return;
  const Matrices m(n, kSteps * (kE4m3 ? 32 : 16), seed);
  const std::vector<float> d = product<n, kE4m3, kRegisters, kAMnMajor, kBMnMajor>(name, m, a, b);
  if (!d.empty()) print_hash(compared ? name : "# " + name, d, m.fragments());
}

// ---- Probes ---------------------------------------------------------------------------------------------------------
/// Every shape, both types, A from shared memory and from registers.
template <int n> void probe_shape() {
  const Tile a = k_major(Swizzle::k128B, 64, 0), b = k_major(Swizzle::k128B, n, 8192);
  const std::string name = "wgmma/n" + std::to_string(n);
  check_product<n, false, false>(name + "/bf16/ss", a, b, n);
  check_product<n, false, true>(name + "/bf16/rs", a, b, n);
  check_product<n, true, false>(name + "/e4m3/ss", a, b, n);
  check_product<n, true, true>(name + "/e4m3/rs", a, b, n);
}

/// All accumulators of n = 32, thread by thread: element (row, column) of D is 32 row + column.
template <bool kE4m3> void probe_fragment() {
  const std::string name = std::string("wgmma/fragment/") + (kE4m3 ? "e4m3" : "bf16");
  if (!is_wanted(name)) return;
  Matrices m(32, kSteps * (kE4m3 ? 32 : 16), 0);
  std::fill(m.a.begin(), m.a.end(), 0.0f);
  std::fill(m.b.begin(), m.b.end(), 0.0f);
  for (unsigned row = 0; row < 64; ++row) {
    float* a = &m.a[row * m.k];
    a[0] = float(row / 8), a[1] = float(row % 8), a[2] = 1, a[3] = 1;
  }
  for (unsigned column = 0; column < 32; ++column) {
    float* b = &m.b[column * m.k];
    b[0] = 256, b[1] = 32, b[2] = float(column / 8 * 8), b[3] = float(column % 8);
  }
  const std::vector<float> d = product<32, kE4m3, false, false, false>(name, m, k_major(Swizzle::k128B, 64, 0),
                                                                       k_major(Swizzle::k128B, 32, 8192));
  for (unsigned t = 0; t < 128 && !d.empty(); ++t)
    print_words(name + "/thread" + std::to_string(t), std::vector<uint16_t>(&d[t * 16], &d[t * 16] + 16));
}

inline const char* mode_name(Swizzle mode) {
  constexpr const char* kNames[] = {"none", "32B", "64B", "128B"};
  return kNames[int(mode)];
}
inline constexpr Swizzle kModes[] = {Swizzle::kNone, Swizzle::k32B, Swizzle::k64B, Swizzle::k128B};

/// K-major operands: modes, strides, what LBO means, starts inside a tile.
inline void probe_k_major() {
  for (const Swizzle mode : kModes) {
    const std::string name = std::string("wgmma/k_major/") + mode_name(mode);
    const unsigned atom = 8 * ptx::swizzle_bytes(mode);
    const Tile a = k_major(mode, 64, 0), b = k_major(mode, 64, 16384);
    check_product<64, false, false>(name + "/bf16", a, b, 1);
    check_product<64, true, false>(name + "/e4m3", a, b, 2);
    Tile far_a = a, far_b = b;                   // atoms of 8 rows apart, at different distances in A and B
    far_a.stride = 2 * atom, far_a.next_row = 16 * atom;
    far_b.stride = 4 * atom, far_b.next_row = 32 * atom;
    if (mode == Swizzle::kNone) far_a.leading = 16 * atom, far_b.leading = 32 * atom;
    check_product<64, false, false>(name + "/apart", far_a, far_b, 3);
    if (mode == Swizzle::kNone) {                // the two halves of K side by side, then the next 8 rows
      Tile near_a = a, near_b = b;
      near_a.leading = atom, near_a.stride = 8 * atom;
      near_b.leading = atom, near_b.stride = 8 * atom;
      check_product<64, false, false>(name + "/k_first", near_a, near_b, 4);
    } else {                                     // LBO is not read
      for (const unsigned leading : {16u, 4096u, 65536u + 16u}) {
        Tile odd_a = a, odd_b = b;
        odd_a.written_leading = odd_b.written_leading = leading;
        check_product<64, false, false>(name + "/leading" + std::to_string(leading), odd_a, odd_b, 5);
      }
    }
    for (const unsigned rows : {8u, 24u}) {      // a view that starts some rows into a taller tile
      Tile lower_a = k_major(mode, 128, 0), lower_b = k_major(mode, 128, 32768);
      lower_a.base += rows / 8 * atom, lower_b.base += rows / 8 * atom;
      check_product<64, false, false>(name + "/from_row" + std::to_string(rows), lower_a, lower_b, 6);
    }
  }
  // Starts that are no multiple of the atom. PTX has the base offset for these; here it stays 0, and the question is
  // whether the swizzle is one of addresses alone.
  for (const unsigned rows : {1u, 2u, 4u, 7u}) {
    Tile a = k_major(Swizzle::k128B, 64, 0), b = k_major(Swizzle::k128B, 128, 8192);
    b.base += rows * 128;
    check_product<64, false, false>("wgmma/k_major/128B/from_row" + std::to_string(rows) + "_without_base_offset", a, b,
                                    7, false);
  }
}

/// MN-major views of A, of B and of both.
template <int n> void probe_mn_major() {
  for (const Swizzle mode : kModes) {
    for (const bool k_first : {false, true}) {
      const std::string name =
          "wgmma/mn_major/n" + std::to_string(n) + "/" + mode_name(mode) + (k_first ? "/k_first" : "/mn_first");
      const Tile a_k = k_major(mode, 64, 0), a_mn = mn_major(mode, 64, 64, 0, k_first);
      const Tile b_k = k_major(mode, n, 16384), b_mn = mn_major(mode, n, 64, 16384, k_first);
      check_product<n, false, false, true, false>(name + "/a", a_mn, b_k, 11);
      check_product<n, false, false, false, true>(name + "/b", a_k, b_mn, 12);
      check_product<n, false, false, true, true>(name + "/ab", a_mn, b_mn, 13);
      check_product<n, false, true, false, true>(name + "/b_rs", a_k, b_mn, 14);
    }
  }
}

/// P V of the sparse kernels: V is the K tile, 64 keys x 512 columns in eight tiles of 64 rows x 128 bytes with 128B
/// swizzle, read as an MN-major B of 256 columns.
inline void probe_v_view() {
  for (const unsigned half : {0u, 1u}) {
    const Tile p = k_major(Swizzle::k128B, 64, 65536);
    const Tile v{true, Swizzle::k128B, 8192, 1024, half * 4 * 8192};
    const std::string name = "wgmma/v_view/columns" + std::to_string(256 * half);
    check_product<256, false, false, false, true>(name + "/ss", p, v, 21 + half);
    check_product<256, false, true, false, true>(name + "/rs", p, v, 21 + half);
  }
}

/// How small a power of two, beside 256, still shows in the sum: in the products of one instruction, and when it is
/// added to an accumulator. Told, not compared: the emulator adds in float32.
template <bool kE4m3> void probe_width() {
  const std::string type = kE4m3 ? "e4m3" : "bf16", name = "wgmma/width/" + type;
  if (!is_wanted(name)) return;
  constexpr unsigned kPerStep = kE4m3 ? 32 : 16;
  for (const bool across : {false, true}) {
    for (const float mantissa : {1.0f, -1.0f, 1.5f}) {
      Matrices m(32, kSteps * kPerStep, 0);
      std::fill(m.a.begin(), m.a.end(), 0.0f);
      std::fill(m.b.begin(), m.b.end(), 0.0f);
      // Row r: 256 + mantissa 2^(8 - r), as 2^(4 - r / 2) 2^(4 - c) with column c = r - r / 2; e4m3 ends at 2^-9.
      const unsigned rows = kE4m3 ? 26 : 40, second = across ? kPerStep : 1;
      for (unsigned r = 0; r < rows; ++r) {
        m.a[r * m.k] = 16, m.a[r * m.k + second] = mantissa * std::ldexp(1.0f, 4 - int(r / 2));
      }
      for (unsigned c = 0; c < rows / 2 + 1; ++c) {
        m.b[c * m.k] = 16, m.b[c * m.k + second] = std::ldexp(1.0f, 4 - int(c));
      }
      const std::vector<float> d = product<32, kE4m3, false, false, false>(name, m, k_major(Swizzle::k128B, 64, 0),
                                                                           k_major(Swizzle::k128B, 32, 8192));
      if (d.empty()) return;
      std::printf("# %s/%s: 256 + %g 2^j keeps of its second part, j = 8, 7, ...:", name.c_str(),
                  across ? "accumulator" : "instruction", double(mantissa));
      for (unsigned r = 0; r < rows; ++r) {
        const unsigned c = r - r / 2, t = r / 16 * 32 + r % 8 * 4 + c % 8 / 2, i = c / 8 * 4 + r / 8 % 2 * 2 + c % 2;
        std::printf(" %.4g", (double(d[t * 16 + i]) - 256) / std::ldexp(double(mantissa), 8 - int(r)));
      }
      std::printf("\n");
    }
  }
}

/// Sums that must be rounded: numbers of many sizes, or of few. How the chip aligns, cuts and rounds shows in the bits.
template <bool kE4m3> void probe_arithmetic(const char* sizes, unsigned exponents) {
  const std::string name = std::string("wgmma/arithmetic/") + (kE4m3 ? "e4m3/" : "bf16/") + sizes;
  if (!is_wanted(name)) return;
  Matrices m(32, kSteps * (kE4m3 ? 32 : 16), 0);
  const auto number = [&](uint32_t i) {
    const uint32_t r = scramble(i);
    const float mantissa = kE4m3 ? 1 + float(r % 8) / 8 : 1 + float(r % 128) / 128;
    return std::ldexp(r & 0x80000000u ? -mantissa : mantissa, int(r >> 8 & 0xff) % int(exponents) - int(exponents) / 2);
  };
  for (std::size_t i = 0; i < m.a.size(); ++i) m.a[i] = number(uint32_t(i) + 77);
  for (std::size_t i = 0; i < m.b.size(); ++i) m.b[i] = number(uint32_t(i) + 77777);
  const std::vector<float> d = product<32, kE4m3, false, false, false>(name, m, k_major(Swizzle::k128B, 64, 0),
                                                                       k_major(Swizzle::k128B, 32, 8192));
  if (d.empty()) return;
  std::printf("%s: fnv %016llx\n", name.c_str(), static_cast<unsigned long long>(fnv(d)));
  std::vector<uint32_t> bits(64);
  std::memcpy(bits.data(), d.data(), 256);
  print_words(name + "/first", bits);
}

inline void probe_products() {
  probe_shape<32>();
  probe_shape<64>();
  probe_shape<96>();
  probe_shape<128>();
  probe_shape<192>();
  probe_shape<256>();
  probe_fragment<false>();
  probe_fragment<true>();
  probe_k_major();
  probe_mn_major<64>();
  probe_mn_major<128>();
  probe_mn_major<256>();
  probe_v_view();
  probe_width<true>();
  probe_width<false>();
  probe_arithmetic<true>("even", 1);
  probe_arithmetic<true>("near", 4);
  probe_arithmetic<true>("far", 14);
  probe_arithmetic<false>("even", 1);
  probe_arithmetic<false>("near", 8);
  probe_arithmetic<false>("far", 60);
}

}  // namespace dsa::probe

#include "matrix.hpp"

#include <algorithm>
#include <bit>
#include <cmath>

namespace dsa::emulator {

MatrixDescriptor decode(uint64_t d) {
  constexpr unsigned kSwizzleBytes[] = {16, 128, 64, 32};
  return {uint32_t(d & 0x3fff) << 4, uint32_t(d >> 16 & 0x3fff) << 4, uint32_t(d >> 32 & 0x3fff) << 4,
          unsigned(d >> 49 & 7), kSwizzleBytes[d >> 62]};
}

std::string illegal(uint64_t d) {
  if (d & (uint64_t(3) << 14 | uint64_t(3) << 30 | uint64_t(7) << 46 | uint64_t(0x3ff) << 52))
    return "reserved bits are set";
  if (d >> 49 & 7) return "a base offset, which this project does not use: align the tile to its swizzle pattern";
  return "";
}

/// The canonical layouts of PTX ("Shared memory matrix layout"), in bytes, with w the swizzle width:
///
///     K-major    row r, byte x of k:   (r / 8) * stride + (r % 8) * w + (x / w) * leading + x % w
///     MN-major   byte y of row, k:     (y / w) * A + y % w + (k % 8) * w + (k / 8) * B
///
/// A and B are leading and stride; without a swizzle (w = 16) they change places. The address bits are swizzled afterwards.
uint32_t element_address(const MatrixDescriptor& d, bool mn_major, unsigned bytes, unsigned row, unsigned k) {
  const unsigned w = d.swizzle_bytes;
  uint32_t address = d.start;
  if (mn_major) {
    const unsigned y = row * bytes;
    const bool none = w == 16;
    address += y / w * (none ? d.stride : d.leading) + y % w + k % 8 * w + k / 8 * (none ? d.leading : d.stride);
  } else {
    const unsigned x = k * bytes;
    address += row / 8 * d.stride + row % 8 * w + x / w * d.leading + x % w;
  }
  return swizzled_address(address, w);
}

namespace {

constexpr int kNoExponent = -1000;   // of zero; a product with it has one far below any other

int exponent_of(float x) { return x == 0 || !std::isfinite(x) ? kNoExponent : std::max(std::ilogb(x), -126); }

/// To `bits` bits of fraction, towards zero.
float cut(double x, int bits) {
  auto y = float(x);
  if (std::fabs(double(y)) > std::fabs(x)) y = std::nextafter(y, 0.0f);
  return std::bit_cast<float>(std::bit_cast<uint32_t>(y) & ~0u << (23 - bits));
}

}  // namespace

void multiply_accumulate(float* d, const float* a, const float* b, unsigned rows, unsigned n, unsigned k,
                         bool accumulate, Adder adder) {
  // By columns of k, so that the inner loops run over n and the compiler can use vectors.
  std::vector<float> bt(std::size_t(n) * k);
  std::vector<int> b_exponent(std::size_t(n) * k), largest(n);
  std::vector<double> scale(n), sum(n);
  for (unsigned j = 0; j < n; ++j) {
    for (unsigned x = 0; x < k; ++x) {
      bt[std::size_t(x) * n + j] = b[std::size_t(j) * k + x];
      b_exponent[std::size_t(x) * n + j] = exponent_of(b[std::size_t(j) * k + x]);
    }
  }
  for (unsigned i = 0; i < rows; ++i) {
    float* row = d + std::size_t(i) * n;
    for (unsigned j = 0; j < n; ++j) {
      if (!accumulate) row[j] = 0;
      largest[j] = exponent_of(row[j]);
    }
    for (unsigned x = 0; x < k; ++x) {
      const int exponent = exponent_of(a[i * k + x]);
      const int* column = &b_exponent[std::size_t(x) * n];
      for (unsigned j = 0; j < n; ++j) largest[j] = std::max(largest[j], exponent + column[j]);
    }
    for (unsigned j = 0; j < n; ++j) {
      scale[j] = largest[j] < kNoExponent / 2 ? 1.0 : std::ldexp(1.0, adder.fraction_bits - largest[j]);
      sum[j] = std::trunc(row[j] * scale[j]);
    }
    for (unsigned x = 0; x < k; ++x) {
      const double factor = a[i * k + x];
      const float* column = &bt[std::size_t(x) * n];
      for (unsigned j = 0; j < n; ++j) sum[j] += std::trunc(factor * column[j] * scale[j]);
    }
    for (unsigned j = 0; j < n; ++j) row[j] = cut(sum[j] / scale[j], adder.result_bits);
  }
}

}  // namespace dsa::emulator

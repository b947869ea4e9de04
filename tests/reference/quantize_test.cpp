// Row scales, quantised rows and the 656-byte row of the KV cache.
#include "reference/quantize.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "brute_force.hpp"
#include "problems.hpp"
#include "reference/load.hpp"

using namespace dsa;
using reference::PackedKvRow;
using reference::quantize_row;
using reference::row_scale;

namespace {
constexpr float kInf = std::numeric_limits<float>::infinity();
const float kNan = std::nanf("");
}  // namespace

TEST_CASE("quantize: an example by hand") {
  // amax 896, so scale 2; 3 / 2 = 1.5 = 0x3c, -7 / 2 = -3.5 = 0xc6, 896 / 2 = 448 = 0x7e.
  const float row[] = {3.0f, -7.0f, 896.0f, 0.0f};
  const reference::QuantizedRow got = quantize_row(row, ScaleMode::kRow);
  CHECK(got.scale == 2.0f);
  CHECK(int(got.bytes[0].bits) == 0x3c);
  CHECK(int(got.bytes[1].bits) == 0xc6);
  CHECK(int(got.bytes[2].bits) == 0x7e);
  CHECK(int(got.bytes[3].bits) == 0x00);
}

TEST_CASE("quantize: mode none converts as it is") {
  const float row[] = {1.0f, 1000.0f, -1000.0f, 0.3f};
  const reference::QuantizedRow got = quantize_row(row, ScaleMode::kNone);
  CHECK(got.scale == 1.0f);
  CHECK(int(got.bytes[0].bits) == 0x38);
  CHECK(int(got.bytes[1].bits) == 0x7e);
  CHECK(int(got.bytes[2].bits) == 0xfe);
  CHECK(int(got.bytes[3].bits) == 0x2a);  // 0.3 -> 0.3125
}

TEST_CASE("L-13: rows of zeros and of tiny values keep a positive scale") {
  for (const float x : {0.0f, -0.0f, 1e-30f, std::ldexp(1.0f, -133), 0.9e-4f}) {
    CAPTURE(x);
    std::vector<float> row(128, 0.0f);
    row[7] = x;
    const reference::QuantizedRow got = quantize_row(row, ScaleMode::kRow);
    CHECK(got.scale == 1e-4f / 448.0f);
    CHECK(row_scale(row, ScaleMode::kRowPow2) == 0x1p-22f);  // 1e-4 / 448 = 2.23e-7 is below 2^-22 = 2.38e-7
    if (std::fabs(x) < 1e-20f) {
      for (const e4m3 byte : got.bytes) CHECK((byte.bits & 0x7f) == 0);
    } else {
      CHECK(int(got.bytes[7].bits) == int(to_e4m3(x / got.scale).bits));
      CHECK((got.bytes[7].bits & 0x7f) > 0x70);
    }
  }
}

TEST_CASE("L-14: a power-of-two scale is rounded up, before it divides") {
  for (int n = -12; n <= 100; n += 7) {
    CAPTURE(n);
    const float amax = std::ldexp(448.0f, n);
    const float power = std::ldexp(1.0f, n);
    const float cases[][2] = {
        {amax, power}, {std::nextafter(amax, kInf), 2 * power}, {std::nextafter(amax, 0.0f), power}};
    for (const auto& c : cases) {
      const float row[] = {c[0] / 3, -c[0]};
      const reference::QuantizedRow got = quantize_row(row, ScaleMode::kRowPow2);
      CHECK(got.scale == c[1]);
      // Bytes belong to the stored scale: decoding is within half a step of 1/16.
      CHECK(std::fabs(got.scale * to_float(got.bytes[0]) - row[0]) <= row[0] / 16);
      CHECK(std::fabs(got.scale * to_float(got.bytes[1]) - row[1]) <= c[0] / 16);
    }
  }
}

TEST_CASE("L-14: a float32 scale that is no power of two survives") {
  PackedKvRow packed{};
  for (int d = 0; d < kDimV; ++d) packed.latent[d] = e4m3{0x38};  // 1
  packed.scale[0] = 0.0123f;
  packed.scale[3] = 1e-7f;
  unsigned char bytes[656];
  std::memcpy(bytes, &packed, sizeof bytes);
  PackedKvRow read;
  std::memcpy(&read, bytes, sizeof bytes);
  const reference::RowVector row = reference::unpack_kv_row(read);
  CHECK(row[0] == double(0.0123f));
  CHECK(row[127] == double(0.0123f));
  CHECK(row[128] == 0.0);
  CHECK(row[511] == double(1e-7f));
}

TEST_CASE("quantize: values are divided by the scale") {
  // Division and multiplication by the reciprocal round differently; find rows where a byte shows it.
  test::Random random(1);
  int different = 0;
  for (int trial = 0; trial < 20000; ++trial) {
    const float amax = random.uniform(1.0f, 100.0f);
    const float scale = amax / 448.0f;
    // A value that lands within a rounding error of the tie 17 between 16 and 18.
    const float x = 17.0f * scale;
    const float row[] = {amax, x};
    const reference::QuantizedRow got = quantize_row(row, ScaleMode::kRow);
    REQUIRE(got.scale == scale);
    REQUIRE(int(got.bytes[1].bits) == int(to_e4m3(x / scale).bits));
    if (to_e4m3(x / scale).bits != to_e4m3(x * (1.0f / scale)).bits) ++different;
  }
  CHECK(different > 0);
}

TEST_CASE("quantize: NaN and infinities do not choose the scale") {
  const float row[] = {kNan, 2.0f, kInf, -4.48f, -kInf, -kNan};
  for (const ScaleMode mode : {ScaleMode::kRow, ScaleMode::kRowPow2}) {
    const reference::QuantizedRow got = quantize_row(row, mode);
    CHECK(got.scale == (mode == ScaleMode::kRow ? 4.48f / 448.0f : 0x1p-6f));
    CHECK(int(got.bytes[0].bits) == 0x7f);
    CHECK(int(got.bytes[1].bits) == int(to_e4m3(2.0f / got.scale).bits));
    CHECK(int(got.bytes[2].bits) == 0x7e);
    CHECK(int(got.bytes[4].bits) == 0xfe);
    CHECK(int(got.bytes[5].bits) == 0x7f);
  }
  const float none[] = {kNan, kNan};
  CHECK(row_scale(none, ScaleMode::kRow) == 1e-4f / 448.0f);
}

TEST_CASE("quantize: whole tensor, bf16 and float32 input") {
  test::Random random(2);
  const int64_t rows = 5;
  const int n = 96;
  const std::vector<bf16> x = random.bf16s(rows * n, 3.0f);
  std::vector<float> x_f32;
  for (bf16 value : x) x_f32.push_back(to_float(value));
  for (const ScaleMode mode : {ScaleMode::kNone, ScaleMode::kRow, ScaleMode::kRowPow2}) {
    std::vector<e4m3> bytes[2] = {std::vector<e4m3>(rows * n), std::vector<e4m3>(rows * n)};
    std::vector<float> scale[2] = {std::vector<float>(rows), std::vector<float>(rows)};
    for (int which = 0; which < 2; ++which) {
      QuantizeArgs args;
      args.rows = rows;
      args.n = n;
      args.mode = mode;
      (which == 0 ? (void)(args.x_bf16 = x.data()) : (void)(args.x_f32 = x_f32.data()));
      args.bytes = bytes[which].data();
      args.scale = scale[which].data();
      reference::quantize(args);
    }
    CHECK(std::memcmp(bytes[0].data(), bytes[1].data(), rows * n) == 0);
    CHECK(scale[0] == scale[1]);
    for (int64_t i = 0; i < rows; ++i) {
      float amax = 0;
      for (int j = 0; j < n; ++j) amax = std::fmax(amax, std::fabs(x_f32[i * n + j]));
      float want = mode == ScaleMode::kNone ? 1.0f : amax / 448.0f;
      if (mode == ScaleMode::kRowPow2) want = float(std::pow(2.0, std::ceil(std::log2(double(want)))));
      CHECK(scale[0][i] == want);
      for (int j = 0; j < n; ++j) {
        const double error = std::fabs(want * test::value_of(bytes[0][i * n + j]) - x_f32[i * n + j]);
        CHECK(error <= std::fmax(std::fabs(x_f32[i * n + j]) / 16, want * 0x1p-10) * (1 + 1e-6));
      }
    }
  }
}

TEST_CASE("KV cache row: 656 bytes, 512 e4m3 | 4 F32 | 64 BF16") {
  test::Random random(3);
  std::vector<bf16> row = random.bf16s(kDimQK);
  for (int d = 128; d < 256; ++d) row[d] = to_bf16(100 * to_float(row[d]));  // a group of its own scale
  for (const ScaleMode mode : {ScaleMode::kRow, ScaleMode::kRowPow2}) {
    const PackedKvRow packed = reference::pack_kv_row(std::span<const bf16, kDimQK>(row), mode);
    unsigned char bytes[656];
    std::memcpy(bytes, &packed, sizeof bytes);
    const reference::RowVector unpacked = reference::unpack_kv_row(packed);
    for (int group = 0; group < 4; ++group) {
      float amax = 0;
      for (int j = 0; j < 128; ++j) amax = std::fmax(amax, std::fabs(to_float(row[group * 128 + j])));
      float scale;
      std::memcpy(&scale, bytes + 512 + 4 * group, 4);
      if (mode == ScaleMode::kRow) CHECK(scale == amax / 448.0f);
      if (mode == ScaleMode::kRowPow2) CHECK((scale >= amax / 448.0f && scale < amax / 224.0f));
      for (int d = group * 128; d < group * 128 + 128; ++d) {
        CHECK(int(bytes[d]) == int(to_e4m3(to_float(row[d]) / scale).bits));
        CHECK(unpacked[d] == scale * test::value_of(e4m3{bytes[d]}));
      }
    }
    for (int d = 0; d < kDimRope; ++d) {
      uint16_t bits;
      std::memcpy(&bits, bytes + 528 + 2 * d, 2);
      CHECK(bits == row[kDimV + d].bits);
      CHECK(unpacked[kDimV + d] == test::value_of(row[kDimV + d]));
    }
  }
}

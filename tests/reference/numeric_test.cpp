// The two storage types, and their conversions.
#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "brute_force.hpp"
#include "reference/load.hpp"
#include "reference/numeric.hpp"

#if __has_include(<cuda_fp8.h>) && __has_include(<cuda_bf16.h>)
#include <cuda_bf16.h>
#include <cuda_fp8.h>
#define DSA_HAVE_CUDA_HEADERS 1
#endif

using namespace dsa;

namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
const float kNan = std::nanf("");

// The non-negative half of e4m3 by hand: one line per exponent field.
const float kE4m3Table[127] = {
    0.0f,     0x1p-9f,   0x2p-9f,  0x3p-9f,   0x4p-9f, 0x5p-9f,   0x6p-9f,  0x7p-9f,    //
    0x8p-9f,  0x9p-9f,   0xap-9f,  0xbp-9f,   0xcp-9f, 0xdp-9f,   0xep-9f,  0xfp-9f,    //
    0.03125f, 0x9p-8f,   0xap-8f,  0xbp-8f,   0xcp-8f, 0xdp-8f,   0xep-8f,  0xfp-8f,    //
    0.0625f,  0x9p-7f,   0xap-7f,  0xbp-7f,   0xcp-7f, 0xdp-7f,   0xep-7f,  0xfp-7f,    //
    0.125f,   0.140625f, 0.15625f, 0.171875f, 0.1875f, 0.203125f, 0.21875f, 0.234375f,  //
    0.25f,    0.28125f,  0.3125f,  0.34375f,  0.375f,  0.40625f,  0.4375f,  0.46875f,   //
    0.5f,     0.5625f,   0.625f,   0.6875f,   0.75f,   0.8125f,   0.875f,   0.9375f,    //
    1.0f,     1.125f,    1.25f,    1.375f,    1.5f,    1.625f,    1.75f,    1.875f,     //
    2.0f,     2.25f,     2.5f,     2.75f,     3.0f,    3.25f,     3.5f,     3.75f,      //
    4.0f,     4.5f,      5.0f,     5.5f,      6.0f,    6.5f,      7.0f,     7.5f,       //
    8.0f,     9.0f,      10.0f,    11.0f,     12.0f,   13.0f,     14.0f,    15.0f,      //
    16.0f,    18.0f,     20.0f,    22.0f,     24.0f,   26.0f,     28.0f,    30.0f,      //
    32.0f,    36.0f,     40.0f,    44.0f,     48.0f,   52.0f,     56.0f,    60.0f,      //
    64.0f,    72.0f,     80.0f,    88.0f,     96.0f,   104.0f,    112.0f,   120.0f,     //
    128.0f,   144.0f,    160.0f,   176.0f,    192.0f,  208.0f,    224.0f,   240.0f,     //
    256.0f,   288.0f,    320.0f,   352.0f,    384.0f,  416.0f,    448.0f};

}  // namespace

TEST_CASE("L-15: e4m3 decodes all 256 bytes as the table written by hand") {
  for (int code = 0; code < 256; ++code) {
    CAPTURE(code);
    const e4m3 byte{uint8_t(code)};
    if ((code & 0x7f) == 0x7f) {
      CHECK(std::isnan(to_float(byte)));
      CHECK(std::isnan(reference::decode(byte)));
      CHECK(std::isnan(test::value_of(byte)));
      continue;
    }
    const float want = code < 128 ? kE4m3Table[code] : -kE4m3Table[code - 128];
    CHECK(to_float(byte) == want);
    CHECK(std::signbit(to_float(byte)) == (code >= 128));
    CHECK(reference::decode(byte) == double(want));
    CHECK(test::value_of(byte) == double(want));
  }
}

TEST_CASE("L-15: e4m3 saturates, rounds to even and keeps NaN") {
  const struct {
    float x;
    int code;
  } cases[] = {{448.0f, 0x7e},      {449.0f, 0x7e},    {464.0f, 0x7e},    {465.0f, 0x7e},    {1e9f, 0x7e},
               {kInf, 0x7e},        {-kInf, 0xfe},     {-465.0f, 0xfe},   {kNan, 0x7f},      {-kNan, 0x7f},
               {0.0f, 0x00},        {-0.0f, 0x80},     {0x1p-9f, 0x01},   {-0x1p-9f, 0x81},  {0x1p-10f, 0x00},
               {0x1.03p-10f, 0x01}, {-0x1p-10f, 0x80}, {0x1.8p-9f, 0x02}, {0x1.4p-8f, 0x02}, {0x1p-6f, 0x08},
               {0x1.ep-7f, 0x08},   {0x1.dp-7f, 0x07}, {432.0f, 0x7e},    {431.9f, 0x7d},    {17.0f, 0x58},
               {19.0f, 0x5a},       {1e-30f, 0x00},    {1e-40f, 0x00}};
  for (const auto& c : cases) {
    CAPTURE(c.x);
    CHECK(int(to_e4m3(c.x).bits) == c.code);
  }
}

TEST_CASE("e4m3 encodes to the nearest of the table's values") {
  // Every midpoint between neighbours, and the floats beside it: ties go to the even code.
  for (int code = 0; code < 126; ++code) {
    CAPTURE(code);
    const float middle = 0.5f * (kE4m3Table[code] + kE4m3Table[code + 1]);
    CHECK(int(to_e4m3(middle).bits) == code + code % 2);
    CHECK(int(to_e4m3(std::nextafter(middle, 0.0f)).bits) == code);
    CHECK(int(to_e4m3(std::nextafter(middle, kInf)).bits) == code + 1);
    CHECK(int(to_e4m3(-middle).bits) == 128 + code + code % 2);
    CHECK(int(to_e4m3(kE4m3Table[code]).bits) == code);
  }
}

TEST_CASE("bf16 rounds to nearest even") {
  CHECK(to_bf16(1.0f).bits == 0x3f80);
  CHECK(to_bf16(1.0f + 0x1p-8f).bits == 0x3f80);  // tie, even below
  CHECK(to_bf16(1.0f + 0x3p-8f).bits == 0x3f82);  // tie, even above
  CHECK(to_bf16(1.0f + 0x1.1p-8f).bits == 0x3f81);
  CHECK(to_bf16(-0.0f).bits == 0x8000);
  CHECK(to_bf16(kInf).bits == 0x7f80);
  CHECK(to_bf16(std::numeric_limits<float>::max()).bits == 0x7f80);
  CHECK(std::isnan(to_float(to_bf16(kNan))));
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const bf16 x{uint16_t(bits)};
    const double want = test::value_of(x);
    const bool same = std::isnan(want) ? std::isnan(to_float(x)) : double(to_float(x)) == want;
    if (!same || (!std::isnan(want) && to_bf16(to_float(x)).bits != bits)) FAIL_CHECK("bits " << bits);
  }
}

#ifdef DSA_HAVE_CUDA_HEADERS
TEST_CASE("conversions agree with CUDA's headers on the host") {
  int wrong = 0;
  // 2^20 bit patterns spread over all floats, then the neighbourhood of every e4m3 midpoint.
  std::vector<float> inputs;
  for (uint64_t bits = 0; bits < (uint64_t(1) << 32); bits += 4093) {
    const uint32_t pattern = uint32_t(bits);
    float x;
    std::memcpy(&x, &pattern, 4);
    inputs.push_back(x);
  }
  for (int code = 0; code < 126; ++code) {
    const float middle = 0.5f * (kE4m3Table[code] + kE4m3Table[code + 1]);
    for (float x : {middle, std::nextafter(middle, 0.0f), std::nextafter(middle, kInf)}) {
      inputs.push_back(x);
      inputs.push_back(-x);
    }
  }
  for (float x : inputs) {
    const int cuda = __nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E4M3);
    if (int(to_e4m3(x).bits) != (std::isnan(x) ? 0x7f : cuda)) ++wrong;
    const __nv_bfloat16_raw raw = __float2bfloat16(x);
    if (!std::isnan(x) && to_bf16(x).bits != raw.x) ++wrong;
  }
  CHECK(wrong == 0);
}
#endif

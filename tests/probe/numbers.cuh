/// @file numbers.cuh
/// Conversions bit by bit against reference/numeric.hpp, approximate exponentials, and instructions on global memory.
#pragma once

#include <cmath>

#include "probe.hpp"

namespace dsa::probe {

struct NoShared {
  uint32_t unused;
};

inline constexpr unsigned kFloats = 1u << 20;

/// Every sign and exponent, every 7 upper mantissa bits, and 16 patterns below them: ties of bf16 and e4m3, their
/// neighbours, subnormals, infinities and NaNs among them.
__host__ __device__ constexpr uint32_t float_bits(unsigned i) {
  constexpr uint32_t kLow[16] = {0x0000, 0x0001, 0x7fff, 0x8000, 0x8001, 0xffff, 0x4000, 0xc000,
                                 0x0002, 0x1234, 0x7ffe, 0x8002, 0xfffe, 0x5555, 0xaaaa, 0x9e37};
  return (i >> 4) << 16 | kLow[i & 15];
}

// ---- Device -------------------------------------------------------------------------------------------------------
static __global__ void convert_from_f32(uint16_t* to_bf16, uint8_t* to_e4m3, uint32_t* pair_bf16, uint32_t* four_e4m3) {
  for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < kFloats / 4; i += gridDim.x * blockDim.x) {
    float x[4];
    for (unsigned j = 0; j < 4; ++j) {
      x[j] = __uint_as_float(float_bits(4 * i + j));
      to_bf16[4 * i + j] = bf16_from(x[j]).bits;
      to_e4m3[4 * i + j] = e4m3_from(x[j]).bits;
    }
    pair_bf16[2 * i] = pack_bf16x2(x[0], x[1]);
    pair_bf16[2 * i + 1] = pack_bf16x2(x[2], x[3]);
    four_e4m3[i] = pack_e4m3x4(x[0], x[1], x[2], x[3]);
  }
}

static __global__ void convert_small(uint8_t* bf16_to_e4m3, uint32_t* e4m3_to_f32, uint32_t* e4m3x4_to_f32,
                                     uint32_t* bf16x2_to_f32) {
  for (unsigned i = threadIdx.x; i < 65536; i += blockDim.x) {
    bf16_to_e4m3[i] = e4m3_from(float_from(bf16{uint16_t(i)})).bits;
    bf16x2_to_f32[i] = __float_as_uint(i % 2 ? unpack_bf16x2(i | 0x5a5a0000u).x : unpack_bf16x2(i << 16 | 0x5a5au).y);
  }
  for (unsigned i = threadIdx.x; i < 64; i += blockDim.x) {
    for (unsigned j = 0; j < 4; ++j) e4m3_to_f32[4 * i + j] = __float_as_uint(float_from(e4m3{uint8_t(4 * i + j)}));
    const float4 x = unpack_e4m3x4(0x03020100u + 0x04040404u * i);
    e4m3x4_to_f32[4 * i] = __float_as_uint(x.x);
    e4m3x4_to_f32[4 * i + 1] = __float_as_uint(x.y);
    e4m3x4_to_f32[4 * i + 2] = __float_as_uint(x.z);
    e4m3x4_to_f32[4 * i + 3] = __float_as_uint(x.w);
  }
}

static __global__ void exponentials(const float* in, float* out, unsigned count) {
  for (unsigned i = threadIdx.x; i < count; i += blockDim.x) out[i] = ptx::exp2_approx(in[i]);
}

static __global__ void permutations(uint32_t* out) {
  for (unsigned i = threadIdx.x; i < 65536; i += blockDim.x) out[i] = ptx::byte_permute(0x83721504u, 0xc7a6e594u, i);
}

/// Thread t adds to row t % 8, so every element gets four additions; the sums are exact.
static __global__ void global_memory(const uint4* in, float* sums4, float* sums2, uint4* copies, uint4* copies_cs) {
  const unsigned t = threadIdx.x;
  const float x = float(t / 8 + 1);
  ptx::red_add_v4_f32(sums4 + 4 * (t % 8), make_float4(x, 2 * x, 3 * x, 4 * x));
  ptx::red_add_v2_f32(sums2 + 2 * (t % 8), make_float2(x, -x));
  const uint4 value = ptx::ld_global_nc_v4(in + t);
  ptx::st_global_v4(copies + t, value);
  ptx::st_global_cs_v4(copies_cs + t, value);
}

static __global__ void subnormal_sums(float* sums) {
  NoShared& s = shared_memory<NoShared>();
  (void)s;
  if (threadIdx.x == 0) ptx::red_add_v4_f32(sums, make_float4(0x1p-130f, 0x1p-140f, -0x1p-126f, 0x1p-149f));
}

// ---- Host -----------------------------------------------------------------------------------------------------------
/// All NaNs as one.
inline std::vector<uint32_t> one_nan(std::vector<uint32_t> words) {
  for (uint32_t& w : words)
    if ((w & 0x7fffffffu) > 0x7f800000u) w = 0x7fc00000u;
  return words;
}

/// The first input whose conversion is not the reference's, for print_hash's "UNEXPECTED".
template <class T, class Input>
void print_conversion(const std::string& name, const std::vector<T>& got, const std::vector<T>& model,
                      const Input& input) {
  print_hash(name, got, model);
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (got[i] == model[i]) continue;
    std::printf("%s/first_difference: input %08x gives %x, reference %x\n", name.c_str(), unsigned(input(i)),
                unsigned(got[i]), unsigned(model[i]));
    return;
  }
}

inline void probe_conversions() {
  if (is_wanted("convert/f32")) {
    const Array<uint16_t> b(kFloats);
    const Array<uint8_t> e(kFloats);
    const Array<uint32_t> b2(kFloats / 2), e4(kFloats / 4);
    LaunchConfig config{dim3(16), dim3(128), sizeof(NoShared)};
    if (!succeeded("convert/f32", launch(convert_from_f32, config, b.data(), e.data(), b2.data(), e4.data()))) return;
    std::vector<uint16_t> b_model(kFloats);
    std::vector<uint8_t> e_model(kFloats);
    for (unsigned i = 0; i < kFloats; ++i) {
      const float x = std::bit_cast<float>(float_bits(i));
      b_model[i] = to_bf16(x).bits;
      e_model[i] = to_e4m3(x).bits;
    }
    std::vector<uint32_t> b2_model(kFloats / 2), e4_model(kFloats / 4);
    std::memcpy(b2_model.data(), b_model.data(), 2 * kFloats);
    std::memcpy(e4_model.data(), e_model.data(), kFloats);
    const auto input = [](std::size_t i) { return float_bits(unsigned(i)); };
    print_conversion("convert/f32_to_bf16", b.read(), b_model, input);
    print_conversion("convert/f32_to_e4m3", e.read(), e_model, input);
    print_hash("convert/pack_bf16x2", b2.read(), b2_model);
    print_hash("convert/pack_e4m3x4", e4.read(), e4_model);
  }
  if (is_wanted("convert/small")) {
    const Array<uint8_t> e(65536);
    const Array<uint32_t> f(256), f4(256), g(65536);
    if (!run<NoShared>("convert/small", convert_small, 1, 128, e.data(), f.data(), f4.data(), g.data())) return;
    std::vector<uint8_t> e_model(65536);
    std::vector<uint32_t> f_model(256), g_model(65536);
    for (unsigned i = 0; i < 65536; ++i) {
      e_model[i] = to_e4m3(to_float(bf16{uint16_t(i)})).bits;
      g_model[i] = i << 16;
    }
    for (unsigned i = 0; i < 256; ++i) f_model[i] = std::bit_cast<uint32_t>(to_float(e4m3{uint8_t(i)}));
    print_conversion("convert/bf16_to_e4m3", e.read(), e_model, [](std::size_t i) { return i; });
    print_hash("convert/e4m3_to_f32", one_nan(f.read()), one_nan(f_model));
    print_hash("convert/unpack_e4m3x4", one_nan(f4.read()), one_nan(f_model));
    print_hash("convert/unpack_bf16x2", g.read(), g_model);
  }
}

inline void probe_exponentials() {
  const std::string name = "exp2_approx";
  if (!is_wanted(name)) return;
  std::vector<float> in = {0.0f, -0.0f, -INFINITY, INFINITY, NAN, -200.0f, 200.0f, -126.5f, -149.0f};
  const std::size_t special = in.size();
  for (int i = -125 * 512; i <= 127 * 512; ++i)
    in.push_back(float(i) / 512 + float(int(scramble(uint32_t(i)) % 1000)) * 1e-6f);
  const Array<float> device_in(in), out(in.size());
  if (!run<NoShared>(name, exponentials, 1, 128, device_in.data(), out.data(), unsigned(in.size()))) return;
  const std::vector<float> y = out.read();
  std::vector<uint32_t> words(special);
  std::memcpy(words.data(), y.data(), special * 4);
  print_words(name + "/special", one_nan(words));
  double worst = 0;
  for (std::size_t i = special; i < in.size(); ++i) {
    const double exact = std::exp2(double(in[i])), error = std::fabs(double(y[i]) - exact) / exact;
    if (!(error <= worst)) worst = error;        // a NaN too
  }
  std::printf("%s/relative_error: %s 2^-21\n", name.c_str(), worst <= 0x1p-21 ? "at most" : "ABOVE");
  std::printf("# %s/relative_error: %.3g = 2^%.2f\n", name.c_str(), worst, std::log2(worst));
}

inline void probe_global_memory() {
  if (const std::string name = "byte_permute"; is_wanted(name)) {
    const Array<uint32_t> out(65536);
    std::vector<uint32_t> model(65536);
    const unsigned char bytes[] = {0x04, 0x15, 0x72, 0x83, 0x94, 0xe5, 0xa6, 0xc7};
    for (unsigned i = 0; i < 65536; ++i) {
      for (unsigned j = 0; j < 4; ++j) {
        const unsigned nibble = i >> 4 * j & 15, byte = bytes[nibble & 7];
        model[i] |= (nibble < 8 ? byte : byte >= 0x80 ? 0xff : 0) << 8 * j;
      }
    }
    if (run<NoShared>(name, permutations, 1, 128, out.data())) print_hash(name, out.read(), model);
  }
  if (const std::string name = "global_memory"; is_wanted(name)) {
    std::vector<unsigned char> bytes = scrambled_bytes(512, 9);
    std::vector<uint32_t> in(128);
    std::memcpy(in.data(), bytes.data(), 512);
    const Array<uint32_t> device_in(in), copies(128), copies_cs(128);
    const Array<float> sums4(32), sums2(16);
    if (!run<NoShared>(name, global_memory, 1, 32, reinterpret_cast<const uint4*>(device_in.data()), sums4.data(),
                       sums2.data(), reinterpret_cast<uint4*>(copies.data()),
                       reinterpret_cast<uint4*>(copies_cs.data())))
      return;
    std::vector<float> model4(32), model2(16);
    for (unsigned i = 0; i < 32; ++i) model4[i] = float(10 * (i % 4 + 1));
    for (unsigned i = 0; i < 16; ++i) model2[i] = i % 2 ? -10.0f : 10.0f;
    print_hash("red_add_v4_f32", sums4.read(), model4);
    print_hash("red_add_v2_f32", sums2.read(), model2);
    print_hash("ld_global_nc_v4+st_global_v4", copies.read(), in);
    print_hash("ld_global_nc_v4+st_global_cs_v4", copies_cs.read(), in);
  }
  if (const std::string name = "red_add_v4_f32/subnormals"; is_wanted(name)) {
    const Array<uint32_t> sums(std::vector<uint32_t>{0, 0, 0x00c00000u, 0});   // the third: 2^-126 + 2^-127
    if (run<NoShared>(name, subnormal_sums, 1, 32, reinterpret_cast<float*>(sums.data())))
      print_words("# " + name, sums.read());
  }
}

inline void probe_numbers() {
  probe_conversions();
  probe_exponentials();
  probe_global_memory();
}

}  // namespace dsa::probe

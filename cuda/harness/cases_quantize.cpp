#include <cmath>
#include <limits>

#include "generate.hpp"

namespace dsa::harness {

namespace {

using generate::normal;

Problem quantize(Tensor x, ScaleMode mode) {
  QuantizeArgs args;
  args.rows = x.shape[0];
  args.n = int(x.shape[1]);
  args.mode = mode;
  Problem problem{args, {}};
  problem.inputs["x"] = std::move(x);
  return problem;
}

/// Rows whose largest element is the given number, the rest smaller.
Tensor with_amax(const std::vector<float>& amax, int n) {
  Tensor x = generate::uniform({int64_t(amax.size()), n}, 5, -1, 1);
  for (std::size_t row = 0; row < amax.size(); ++row) {
    float* values = x.data<float>() + row * std::size_t(n);
    for (int j = 0; j < n; ++j) values[j] *= amax[row];
    values[row % std::size_t(n)] = row % 2 ? -amax[row] : amax[row];
  }
  return x;
}

/// Rows whose quotients fall half-way between two e4m3 codes, where one unit in the last place decides the byte.
Tensor half_way_quotients() {
  const std::vector<float> amax = {0.0123f * 448, 3.7f, 1e-3f, 77.7f, 1e4f, 3e38f};
  constexpr int kCodes = 0x7e;  // the finite positive codes
  Tensor x = with_amax(amax, 576);
  for (std::size_t row = 0; row < amax.size(); ++row) {
    const float scale = amax[row] / kE4m3Max;
    for (int j = 0; j < 2 * kCodes; ++j) {
      const float low = to_float(e4m3{uint8_t(j / 2)}), high = to_float(e4m3{uint8_t(j / 2 + 1)});
      x.data<float>()[row * 576 + 16 + std::size_t(j)] = (j % 2 ? -0.5f : 0.5f) * (low + high) * scale;
    }
  }
  return x;
}

/// How many bytes would differ if the values were multiplied by the reciprocal of the scale.
int bytes_that_a_reciprocal_changes(const Problem& p) {
  const auto& args = std::get<QuantizeArgs>(p.args);
  const Tensor& x = p.inputs.at("x");
  int different = 0;
  for (int64_t row = 0; row < args.rows; ++row) {
    float amax = 0;
    for (int j = 0; j < args.n; ++j) amax = std::max(amax, std::fabs(x.data<float>()[row * args.n + j]));
    const float scale = std::max(amax, 1e-4f) / kE4m3Max, reciprocal = 1 / scale;
    for (int j = 0; j < args.n; ++j) {
      const float value = x.data<float>()[row * args.n + j];
      different += to_e4m3(value / scale).bits != to_e4m3(value * reciprocal).bits;
    }
  }
  return different;
}

/// 448 * 2^n and its neighbours: where the power-of-two scale must change.
Tensor scale_edges() {
  std::vector<float> amax;
  for (float power : {0.25f, 1.0f, 8.0f}) {
    const float edge = kE4m3Max * power;
    amax.insert(amax.end(), {edge, std::nextafter(edge, 1e9f), std::nextafter(edge, 0.0f)});
  }
  return with_amax(amax, 128);
}

Tensor special_values() {
  const float nan = std::numeric_limits<float>::quiet_NaN(), inf = std::numeric_limits<float>::infinity();
  return generate::floats(
      {4, 16}, {448,  464,  465, 1e9f, inf, nan, -0.0f, 0x1p-9f, 0x1p-10f, 0x1.03p-10f, -448, -464, -inf,
                -nan, 0.0f, 3,   nan,  1,   2,   3,     4,       5,        6,           7,    8,    9,
                10,   11,   12,  13,   14,  15,  inf,   -inf,    0.5f,     -0.5f,       1,    -1,   2,
                -2,   4,    -4,  8,    -8,  16,  -16,   32,      -32,      nan,         nan,  nan,  nan,
                nan,  nan,  nan, nan,  nan, nan, nan,   nan,     nan,      nan,         nan,  nan});
}

Tensor tiny_rows() {
  Tensor x(DType::kBF16, {4, 128});  // row 0: zeros
  generate::fill(x, 128, 256, 1e-30f);
  x.data<bf16>()[256 + 7] = {1};         // row 2: one subnormal
  generate::fill(x, 384, 512, 9.9e-5f);  // row 3: just below the floor of amax
  return x;
}

bool has_zero_and_subnormal_rows(const Problem& p) {
  const Tensor& x = p.inputs.at("x");
  double first = 0;
  for (int j = 0; j < 128; ++j) first += std::fabs(x.at(j));
  return first == 0 && x.at(256 + 7) > 0 && x.at(256 + 7) < 1.2e-38;
}

bool straddles_edges(const Problem& p) {
  const Tensor& x = p.inputs.at("x");
  bool equal = false, above = false, below = false;
  for (int64_t i = 0; i < x.elements(); ++i) {
    const float a = std::fabs(float(x.at(i)));
    equal = equal || a == 448;
    above = above || (a > 448 && a < 448.001f);
    below = below || (a < 448 && a > 447.999f);
  }
  return equal && above && below;
}

}  // namespace

std::vector<Case> quantize_cases() {
  std::vector<Case> cases;
  const auto add = [&](CaseKind kind, std::string name, std::string what, std::function<Problem()> make,
                       std::function<bool(const Problem&)> holds = nullptr) {
    cases.push_back(
        {Stage::kQuantize, kind, std::move(name), std::move(what), std::move(make), std::move(holds)});
  };
  struct Mode {
    const char* name;
    ScaleMode mode;
  };
  for (const Mode m : {Mode{"row", ScaleMode::kRow}, Mode{"row_pow2", ScaleMode::kRowPow2},
                       Mode{"none", ScaleMode::kNone}}) {
    const std::string suffix = std::string("/scale:") + m.name;
    const auto small = [&](const std::string& name, const char* what, std::function<Tensor()> x,
                           std::function<bool(const Problem&)> holds = nullptr) {
      add(
          CaseKind::kSmall, name + suffix, what, [x, m] { return quantize(x(), m.mode); }, std::move(holds));
    };
    for (int n : {1, 20, 127, 128, 576, 1000}) {
      small("bf16/n:" + std::to_string(n), "row lengths with and without a tail", [n] {
        return normal(DType::kBF16, {3, n}, 1, 2);
      });
      small("f32/n:" + std::to_string(n), "the same in float32", [n] {
        return normal(DType::kF32, {3, n}, 2, 0.0123f);
      });
    }
    small("special_values", "saturation, NaN and infinities; none of them chooses the scale", special_values);
    small("tiny_rows", "rows of zeros and of almost nothing: the scale stays positive", tiny_rows,
          has_zero_and_subnormal_rows);
    small("scale_edges", "amax at 448 * 2^n and one float to either side", scale_edges, straddles_edges);
    // The claim concerns the row mode: a power of two has an exact reciprocal.
    small("half_way_quotients", "division by the scale, not multiplication with its reciprocal",
          half_way_quotients,
          m.mode == ScaleMode::kRow ? [](const Problem& p) { return bytes_that_a_reciprocal_changes(p) > 20; }
                                    : std::function<bool(const Problem&)>{});
    small("rows:0", "no rows at all", [] { return Tensor(DType::kBF16, {0, 128}); });
  }
  add(
      CaseKind::kLarge, "rows:3728400/n:576", "more than 2^31 elements",
      [] {
        return quantize(normal(DType::kBF16, {3728400, 576}, 3), ScaleMode::kRow);
      },
      [](const Problem& p) { return p.inputs.at("x").elements() > int64_t(1) << 31; });
  add(CaseKind::kLarge, "rows:70000/n:128", "more rows than a grid's y axis may have", [] {
    return quantize(normal(DType::kBF16, {70000, 128}, 3), ScaleMode::kRowPow2);
  });
  add(CaseKind::kExplain, "rows:64/n:576", "64 tokens of a cache", [] {
    return quantize(normal(DType::kBF16, {64, 576}, 4), ScaleMode::kRow);
  });
  for (int n : {576, 128}) {
    add(CaseKind::kBench, "rows:131072/n:" + std::to_string(n), "a cache of 131072 tokens", [n] {
      return quantize(normal(DType::kBF16, {131072, n}, 4), ScaleMode::kRow);
    });
  }
  return cases;
}

}  // namespace dsa::harness

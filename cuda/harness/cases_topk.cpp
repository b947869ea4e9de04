#include <algorithm>
#include <bit>
#include <climits>
#include <cmath>
#include <limits>

#include "cuda/common/topk_tiles.hpp"
#include "generate.hpp"

namespace dsa::harness {

namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

struct Sizes {
  int rows = 2, n = 1000, topk = 64;
  bool deterministic = false;
  int64_t stride = 0;  ///< 0: rows begin on 16-byte boundaries
};

using Value = std::function<float(int64_t row, int64_t column)>;
using Window = std::function<std::pair<int32_t, int32_t>(int64_t row)>;

Problem topk(const Sizes& s, Tensor logits, const Window& window = nullptr) {
  TopkArgs a;
  a.rows = s.rows;
  a.n = s.n;
  a.topk = s.topk;
  a.deterministic = s.deterministic;
  a.logits_stride = s.stride ? s.stride : (s.n + 3) / 4 * 4;
  Problem p{a, {}};
  p.inputs["logits"] = std::move(logits);
  p.inputs["ks"] = generate::integers({s.rows}, [&](int64_t i) { return window ? window(i).first : 0; });
  p.inputs["ke"] = generate::integers({s.rows}, [&](int64_t i) { return window ? window(i).second : s.n; });
  return p;
}

Problem topk(const Sizes& s, const Value& value, const Window& window = nullptr) {
  Tensor logits(DType::kF32, {s.rows, s.n});
  for (int64_t i = 0; i < logits.elements(); ++i) logits.data<float>()[i] = value(i / s.n, i % s.n);
  return topk(s, std::move(logits), window);
}

Problem random(const Sizes& s, const Window& window = nullptr) {
  return topk(s, generate::normal(DType::kF32, {s.rows, s.n}, 3), window);
}

double noise(int64_t row, int64_t column) {
  return double(generate::hash(uint64_t(row), uint64_t(column)) >> 11) * 0x1p-53;
}

/// The columns of a row in another order: a permutation of [0, n), unless 7919 divides n.
int64_t scattered(int64_t row, int64_t column, int64_t n) { return (column * 7919 + row) % n; }

/// `winners` columns are all of an outermost bin of coarse keys, or of the one just below zero: from `edge` on, away from it by
/// as much as a factor of 4 or down to 0. The others lie just below the edge. Such a bin spans many powers of two, so that
/// the digits of fp32 keys inside it begin and end elsewhere.
float wide_bin(int64_t row, int64_t column, int winners) {
  constexpr double kEdges[] = {56320, 49152, -0x1.08p-16, -0x1.4p-16};   // 11 and 8 bits, 11 and 8 bits
  const double edge = kEdges[row], away = noise(row, column);
  if (column == 0 && edge < 0) return -std::numeric_limits<float>::denorm_min();
  if (scattered(0, column, 1000) < winners) return float(edge > 0 ? edge * (1 + 3 * away) : edge * away);
  return float(edge > 0 ? edge * (0.999 - away / 64) : edge * (1.001 + away / 64));
}

/// `winners` of n columns, scattered, above a plateau of zeros, which ReLU makes ordinary.
float plateau(int64_t row, int64_t column, int n, int winners) {
  return scattered(0, column, n) < winners ? float(1 + noise(row, column)) : 0.f;
}

/// In the first two tiles that rung 6 looks at, large values are those of lane 0: its threads' lists are full while all of them
/// have less than 300.
float one_lane(int64_t row, int64_t column) {
  const int tile = int(column) / kPiece % tiles_of(20000, tile_slots(256));
  const bool large = tile < 2 ? column % kPiece < 4 : noise(row + 9, column) < 0.03;
  return float(noise(row, column) + (large ? 10 : 0));
}

/// All values within one binade: they share sign, exponent and the first mantissa bits.
float one_binade(int64_t row, int64_t column) {
  return float(1 + 0.245 * noise(row, column));
}

/// One value in ten is one of 40 that lie close together, but not next to each other; a few are larger.
float crowd(int64_t row, int64_t column) {
  const double which = noise(row, column), value = noise(row + 7, column);
  if (which < 0.1) return std::bit_cast<float>(0x3fc0000f + 16 * uint32_t(40 * value));
  return float(which < 0.12 ? 2 + value : value / 2);
}

/// `members` columns, scattered over n, share a radix bin [1, 1 + width); a tenth as many lie above it, the rest below.
float one_bin(int64_t row, int64_t column, int64_t n, int64_t members, double width) {
  const int64_t place = scattered(0, column, n);
  if (place < members) return float(1 + width * noise(row, column));
  return place < members + members / 10 ? float(2 + noise(row, column)) : float(noise(row, column) / 2);
}

bool in_bin(float x, double width) { return x >= 1 && double(x) < 1 + width; }

/// Beyond the largest fp16 value, on either side.
float huge(int64_t row, int64_t column) {
  const float x = float(7e4 * (1 + noise(row, column)));
  return (column + row) % 3 ? -x : x;
}

float denormal(int64_t row, int64_t column) {
  const float tiny = float(1 + column % 500) * std::numeric_limits<float>::denorm_min();
  return (column + row) % 3 ? tiny : -tiny;
}

float extreme(int64_t row, int64_t column) {
  constexpr float kValues[] = {7e4f, -7e4f, 1e30f,   -1e30f,   kInf,  -kInf,
                               0,    -0.0f, 3.4e38f, -3.4e38f, 65504, -65504};
  return column % 5 == row % 5 ? kValues[column / 5 % 12] : float(noise(row, column));
}

float with_nan(int64_t row, int64_t column) {
  const float sign = column % 4 == 0 ? 1.f : -1.f;
  return column % 2 == 0 ? std::copysign(kNan, sign) : float(noise(row, column));
}

/// Few values, each many times: ties everywhere.
float few_values(int64_t row, int64_t column) {
  return float(generate::hash(uint64_t(row) + 50, uint64_t(column)) % 4);
}

/// Rows of one candidate between full rows: state that is kept from the row before shows.
std::pair<int32_t, int32_t> alternating(int64_t row) {
  return row % 2 ? std::pair(500, 501) : std::pair(0, 1000);
}

const std::vector<std::pair<int32_t, int32_t>> kOddWindows = {
    {0, 0},  {50, 50}, {900, 10},    {-7, 20}, {970, 5000}, {INT_MIN, INT_MAX}, {INT_MAX, INT_MIN},
    {-1, 0}, {-9, -3}, {1000, 1001}, {1, 65},  {3, 68},     {5, 900},           {999, 1000}};

std::pair<int32_t, int32_t> odd_window(int64_t row) {
  return kOddWindows[std::size_t(row)];
}

/// Empty rows, rows around topk = 64 and long ones side by side, from every alignment.
std::pair<int32_t, int32_t> mixed_window(int64_t row) {
  constexpr int kLengths[] = {900, 0, 64, 1, 65, 500, 63, 128};
  const int32_t first = int32_t(row * 13 % 8);
  return {first, first + kLengths[row % 8]};
}

bool has_odd_windows(const Problem& p) {
  bool inverted = false, negative = false, beyond = false, misaligned = false;
  for (int64_t i = 0; i < std::get<TopkArgs>(p.args).rows; ++i) {
    const double ks = p.inputs.at("ks").at(i), ke = p.inputs.at("ke").at(i);
    inverted = inverted || ke < ks;
    negative = negative || ks < 0;
    beyond = beyond || ke > std::get<TopkArgs>(p.args).n;
    misaligned = misaligned || (ks > 0 && std::fmod(ks, 4) != 0);
  }
  return inverted && negative && beyond && misaligned;
}

int64_t count(const Problem& p, const std::function<bool(float)>& property) {
  const Tensor& logits = p.inputs.at("logits");
  return std::count_if(logits.data<float>(), logits.data<float>() + logits.elements(), property);
}

bool ties_at_threshold(const Problem& p) {
  const auto& a = std::get<TopkArgs>(p.args);
  std::vector<float> row(p.inputs.at("logits").data<float>(), p.inputs.at("logits").data<float>() + a.n);
  std::sort(row.begin(), row.end(), std::greater<>());
  return a.n > a.topk && row[std::size_t(a.topk) - 1] == row[std::size_t(a.topk)];
}

std::string size_name(const Sizes& s) {
  return "rows:" + std::to_string(s.rows) + "/n:" + std::to_string(s.n) + "/topk:" + std::to_string(s.topk);
}

void add_small(const std::function<void(std::string, std::string, std::function<Problem()>,
                                        std::function<bool(const Problem&)>)>& add,
               bool deterministic) {
  const std::string suffix = deterministic ? "/deterministic" : "";
  const auto small = [&](const std::string& name, const char* what, std::function<Problem()> make,
                         std::function<bool(const Problem&)> holds = nullptr) {
    add(name + suffix, what, std::move(make), std::move(holds));
  };
  Sizes s;
  s.deterministic = deterministic;
  const auto with = [s](int rows, int n, int topk, int64_t stride = 0) {
    Sizes t = s;
    t.rows = rows, t.n = n, t.topk = topk, t.stride = stride;
    return t;
  };
  small("random", "plain data", [=] { return random(s); });
  for (int k : {1, 2, 63, 128}) {
    small("topk:" + std::to_string(k), "numbers of selected columns",
          [=] { return random(with(2, 300, k)); });
  }
  for (int n : {0, 1, 5, 63, 64, 65}) {
    small("n:" + std::to_string(n), "rows shorter than topk, as long, and one longer: -1 comes last",
          [=] { return random(with(2, n, 64)); });
  }
  small("rows:0", "no rows", [=] { return random(with(0, 100, 64)); });
  for (int winners : {0, 1, 63, 64}) {
    small(
        "plateau/winners:" + std::to_string(winners), "winners above a plateau of zeros",
        [=] { return topk(s, [=](int64_t i, int64_t j) { return plateau(i, j, s.n, winners); }); },
        [=](const Problem& p) { return count(p, [](float x) { return x > 0; }) == 2 * winners; });
  }
  small(
      "all_equal", "rows of one value each",
      [=] {
        return topk(with(3, 1000, 64), [](int64_t i, int64_t) { return i == 0 ? 0.f : i == 1 ? 1.f : -3.f; });
      },
      ties_at_threshold);
  small(
      "few_values", "ties at every rank", [=] { return topk(s, few_values); }, ties_at_threshold);
  small(
      "one_binade", "all values in [1, 1.245): one coarse radix bin", [=] { return topk(s, one_binade); },
      [](const Problem& p) { return count(p, [](float x) { return x < 1 || x >= 1.245f; }) == 0; });
  small(
      "wide_bin", "the selected columns are exactly one wide bin, with others just below its edge",
      [=] { return topk(with(4, 1000, 64), [](int64_t i, int64_t j) { return wide_bin(i, j, 64); }); },
      [](const Problem& p) { return count(p, [](float x) { return x >= 56320; }) >= 64; });
  small("sorted", "rising", [=] { return topk(s, [](int64_t, int64_t j) { return float(j); }); });
  small("reversed", "falling", [=] { return topk(s, [](int64_t, int64_t j) { return float(-j); }); });
  small("alike_neighbours", "runs of 8 equal values: a sample is worth less than it seems; in the last row it misleads", [=] {
    return topk(with(4, 9000, 512), [](int64_t i, int64_t j) {
      if (i == 3 && is_sampled(int(j), 9000)) return float(std::exp2(8 * noise(i, j)));
      return float(noise(i, j / 8)) - 2;
    });
  });
  small("one_lane", "at first all that is large lies in 4 of every 128 columns, then everywhere", [=] {
    return topk(with(5, 20000, 300), one_lane);
  });
  small("organ_pipe", "rising, then falling",
        [=] { return topk(s, [](int64_t, int64_t j) { return float(std::min(j, 999 - j)); }); });
  small(
      "denormals", "denormal numbers of either sign", [=] { return topk(s, denormal); },
      [](const Problem& p) {
        return count(p, [](float x) { return std::fpclassify(x) == FP_SUBNORMAL; }) == 2000;
      });
  small(
      "extreme", "infinities and values beyond the range of fp16",
      [=] { return topk(with(3, 1000, 100), extreme); },
      [](const Problem& p) {
        return count(p, [](float x) { return x == kInf; }) > 0 &&
               count(p, [](float x) { return x == -kInf; }) > 0;
      });
  small(
      "near_lowest", "the largest logits share the lowest binade: their keys begin with eight zero bits",
      [=] { return topk(s, [](int64_t, int64_t j) { return -2e38f - float(j * 31 % 1000) * 1e35f; }); },
      [](const Problem& p) { return count(p, [](float x) { return x > -0x1p127f; }) == 0; });
  small(
      "mostly_minus_infinity", "3 finite values among -inf: 13 slots stay -1",
      [=] {
        return topk(with(2, 51, 16),
                    [](int64_t i, int64_t j) { return j % 20 == i + 3 ? float(-j) : -kInf; });
      },
      [](const Problem& p) { return count(p, [](float x) { return x > -kInf; }) == 6; });
  small(
      "nan", "NaN of either sign is never selected", [=] { return topk(with(2, 100, 64), with_nan); },
      [](const Problem& p) { return count(p, [](float x) { return std::isnan(x); }) == 100; });
  small(
      "signed_zeros", "-0 equals +0",
      [=] {
        return topk(s, [](int64_t i, int64_t j) {
          return generate::hash(uint64_t(i) + 9, uint64_t(j)) & 1 ? 0.f : -0.f;
        });
      },
      [](const Problem& p) { return count(p, [](float x) { return std::signbit(x); }) > 100; });
  small(
      "odd_windows", "inverted, negative, empty, overlong and misaligned windows",
      [=] { return random(with(int(kOddWindows.size()), 1000, 64), odd_window); }, has_odd_windows);
  small("garbage_outside", "NaN and huge values outside the window are not candidates", [=] {
    return topk(
        with(2, 400, 64),
        [](int64_t i, int64_t j) {
          return j < 101 || j >= 303 ? (j % 2 ? kNan : 1e30f) : float(noise(i, j));
        },
        [](int64_t) { return std::pair(101, 303); });
  });
  small("alternating_rows", "one-candidate rows between full rows: nothing is kept from the row before",
        [=] { return random(with(6, 1000, 64), alternating); });
  small("padded_rows", "rows further apart than they are long",
        [=] { return random(with(3, 1000, 64, 1024)); });
  small("odd_stride", "rows that begin on 4-byte boundaries only",
        [=] { return random(with(3, 1001, 64, 1001)); });
  small("mixed_windows", "short and long rows side by side, from every alignment",
        [=] { return random(with(16, 1000, 64), mixed_window); });
  for (int members : {511, 512, 513, 2000}) {
    // 2^-10: a class of 16-bit keys, and of fp16 values, around the capacity of a list of its members.
    small(
        "one_class/members:" + std::to_string(members), "values that differ only below fp16's precision",
        [=] {
          return topk(with(1, 2500, 300),
                      [=](int64_t i, int64_t j) { return one_bin(i, j, 2500, members, 0x1p-10); });
        },
        [=](const Problem& p) { return count(p, [](float x) { return in_bin(x, 0x1p-10); }) == members; });
  }
  for (int members : {4095, 4096, 4097}) {
    // 2^-5: a bin of 8 or 11 bits, around the capacity of a buffer of candidates.
    small(
        "one_bin/members:" + std::to_string(members), "a radix bin as large as a buffer of candidates",
        [=] {
          return topk(with(1, 5000, 600),
                      [=](int64_t i, int64_t j) { return one_bin(i, j, 5000, members, 0x1p-5); });
        },
        [=](const Problem& p) { return count(p, [](float x) { return in_bin(x, 0x1p-5); }) == members; });
  }
  small(
      "rising_in_one_bin", "the largest come last: a buffer that is clipped loses them",
      [=] {
        return topk(with(1, 9000, 512), [](int64_t, int64_t j) { return float(1 + double(j) / 9000 * 0x1p-5); });
      },
      [](const Problem& p) { return count(p, [](float x) { return !in_bin(x, 0x1p-5); }) == 0; });
  small(
      "huge", "all values beyond fp16's range", [=] { return topk(s, huge); },
      [](const Problem& p) { return count(p, [](float x) { return std::fabs(x) < 65520; }) == 0; });
  small(
      "equal_below_fp16", "the last to be selected are equal and beyond fp16's range, with -inf among them",
      [=] {
        return topk(with(4, 9000, 600), [](int64_t i, int64_t j) {
          const int64_t place = scattered(i, j, 9000);
          return place < 500 ? float(noise(i, j)) : place < 5000 ? -1e30f : -kInf;
        });
      },
      [](const Problem& p) { return count(p, [](float x) { return x == -1e30f; }) == 4 * 4500; });
  small("longer_than_smem", "a row of which not even 16-bit keys fit in shared memory",
        [=] { return random(with(1, 120001, 2048), [](int64_t) { return std::pair(3, 120001); }); });
  small("longer_than_smem/all_equal", "the same, all of it tied",
        [=] { return topk(with(1, 120001, 2048), [](int64_t, int64_t) { return 1.f; }); });
  small(
      "below_zero", "what is selected last is so close to zero that as fp16 it is hardly below",
      [=] {
        return topk(with(1, 1000, 64), [](int64_t, int64_t j) { return j % 100 == 0 ? 1.f : float(1 + j % 29) * -6e-8f; });
      },
      [](const Problem& p) { return count(p, [](float x) { return x > 0 || x < -2e-6f; }) == 10; });
  small(
      "two_decimals/n:9000", "ties at every rank, few of them at each", [=] {
        Tensor logits = generate::normal(DType::kF32, {4, 9000}, 3);
        float* x = logits.data<float>();
        for (int64_t i = 0; i < logits.elements(); ++i) x[i] = std::round(100 * x[i]) / 100;
        return topk(with(4, 9000, 500), std::move(logits));
      });
  small(
      "crowd_of_ties/n:9000", "many values in a narrow bin, each of them many times",
      [=] { return topk(with(4, 9000, 512), crowd); }, ties_at_threshold);
  small(
      "equal_winners/n:9000", "as many equal winners as are selected, and more than a bin is ranked for",
      [=] { return topk(with(4, 9000, 600), [](int64_t i, int64_t j) { return scattered(i, j, 9000) < 600 ? 2.f : 1.f; }); },
      [](const Problem& p) { return count(p, [](float x) { return x == 2; }) == 4 * 600; });
  small("n:66000", "rows so long that the sample of rung 6 has two tiles, more of them than SMs",
        [=] { return random(with(4, 66000, 64)); });
  small("signed_zeros/n:9000", "a few +0 among -0: the lowest columns are selected, whatever their sign", [=] {
    return topk(with(2, 9000, 64), [](int64_t i, int64_t j) { return scattered(i, j, 9000) < 40 ? 0.f : -0.f; });
  });
  small("subnormal_ties/n:20000", "a bin of keys that ends at -0, and zeros at the end of the row", [=] {
    return topk(with(2, 20000, 64), [](int64_t, int64_t j) {
      return j >= 19000 && (j - 19000) % 30 == 0 && j < 19960 ? 0.f : std::bit_cast<float>(0x80003fffu);
    });
  });
  small("one_binade/n:9000", "more values in one radix bin than a buffer of candidates may hold",
        [=] { return topk(with(1, 9000, 512), one_binade); });
}

}  // namespace

std::vector<Case> topk_cases() {
  std::vector<Case> cases;
  const auto add = [&](CaseKind kind, std::string name, std::string what, std::function<Problem()> make,
                       std::function<bool(const Problem&)> holds = nullptr) {
    cases.push_back(
        {Stage::kTopk, kind, std::move(name), std::move(what), std::move(make), std::move(holds)});
  };
  for (bool deterministic : {false, true}) {
    add_small(
        [&](std::string name, std::string what, std::function<Problem()> make,
            std::function<bool(const Problem&)> holds) {
          add(CaseKind::kSmall, std::move(name), std::move(what), std::move(make), std::move(holds));
        },
        deterministic);
  }

  for (bool deterministic : {false, true}) {
    const std::string suffix = deterministic ? "/deterministic" : "";
    for (int n : {2049, 4095, 4096, 4097, 8192, 131072}) {
      const Sizes s{4, n, 2048, deterministic};
      add(CaseKind::kLarge, "one_binade/n:" + std::to_string(n) + suffix,
          "bins around and above every buffer size", [=] {
            return topk(s, generate::uniform({s.rows, s.n}, 6, 1.0f, 1.245f));
          });
    }
    const Sizes s{300, 100000, 2048, deterministic};
    add(CaseKind::kLarge, "plateau/n:100000" + suffix,
        "a plateau of zeros around 0, 1, 2047 and 2048 winners, more rows than SMs", [=] {
          return topk(s, [=](int64_t i, int64_t j) {
            constexpr int kWinners[] = {0, 1, 2047, 2048};
            return plateau(i, j, s.n, kWinners[i % 4]);
          });
        });
    const Sizes longest{2, 1048576, 2048, deterministic};
    add(CaseKind::kLarge, "random/n:1048576" + suffix, "longer than the smem of eight SMs",
        [=] { return random(longest); });
    add(CaseKind::kLarge, "few_values/n:1048576" + suffix, "the same, with ties at every rank",
        [=] { return topk(longest, few_values); });
    add(CaseKind::kLarge, "random/n:262144" + suffix, "so long that normal data overflow a buffer of 4096",
        [=] {
          return random({8, 262144, 2048, deterministic});
        });
  }
  add(
      CaseKind::kLarge, "2^31_logits", "row offsets beyond 2^31 elements",
      [] {
        const Sizes s{32832, 65536, 2048};
        return random(
            s, [=](int64_t i) { return i >= s.rows - 8 ? std::pair(0, s.n) : std::pair(s.n - 256, s.n); });
      },
      [](const Problem& p) { return p.inputs.at("logits").elements() > int64_t(1) << 31; });
  add(CaseKind::kLarge, "rows:70000", "more rows than a grid's y axis may have", [] {
    return random({70000, 256, 64});
  });
  const Sizes two{2, 16384, 2048};
  add(CaseKind::kExplain, size_name(two), "two rows of 64 KiB", [=] { return random(two); });
  for (const Sizes s : {Sizes{4096, 32768, 2048}, Sizes{4096, 8192, 2048}, Sizes{4096, 4096, 2048},
                        Sizes{1024, 131072, 2048}, Sizes{64, 32768, 2048}, Sizes{1, 131072, 2048}}) {
    add(CaseKind::kBench, size_name(s), "random logits", [=] { return random(s); });
  }
  const Sizes most{4096, 32768, 2048};
  const auto other_data = [&](const std::string& name, const char* what, const Value& value) {
    add(CaseKind::kBench, size_name(most) + "/" + name, what, [=] { return topk(most, value); });
  };
  other_data("all_equal", "one value: everything is tied", [](int64_t, int64_t) { return 1.f; });
  other_data("plateau", "1000 winners above zeros", [=](int64_t i, int64_t j) { return plateau(i, j, most.n, 1000); });
  other_data("one_binade", "one coarse radix bin", one_binade);
  other_data("rising", "the largest come last", [](int64_t, int64_t j) { return float(j); });
  other_data("alike", "runs of 8 equal values", [](int64_t i, int64_t j) { return float(noise(i, j / 8)); });
  return cases;
}

}  // namespace dsa::harness

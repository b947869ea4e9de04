#include <algorithm>
#include <climits>
#include <cmath>
#include <random>

#include "cuda/common/topk_tiles.hpp"
#include "indexer_data.hpp"

namespace dsa::harness {

namespace {

struct Sizes {
  int s_q = 2, s_kv = 130, topk = 64, h_i = 64, d_i = 128;
  int chunk = 0;  ///< 0: all queries at once
  bool deterministic = false;
  uint64_t seed = 1;
};

Problem index_topk(const Sizes& s, const Window& window) {
  IndexTopkArgs a;
  a.s_q = s.s_q, a.s_kv = s.s_kv, a.h_i = s.h_i, a.d_i = s.d_i, a.topk = s.topk;
  a.deterministic = s.deterministic;
  a.chunk = s.chunk ? s.chunk : std::max(1, s.s_q);
  a.logits_stride = (s.s_kv + 3) / 4 * 4;
  return {a, scoring_inputs(s.s_q, s.s_kv, s.h_i, s.d_i, s.seed, window)};
}

/// Empty, inverted, beyond either end, and of topk - 1, topk and topk + 1 columns, for topk 64.
const std::vector<std::pair<int32_t, int32_t>> kOddWindows = {
    {0, 0},  {90, 10}, {-7, 20},  {100, 1000}, {INT_MIN, INT_MAX}, {INT_MAX, INT_MIN}, {-9, -3}, {500, 900},
    {1, 64}, {1, 65},  {1, 66},   {67, 130},   {66, 130},          {65, 130},          {129, 130}};

/// Makes every logit of query 0 zero, and of query 1 NaN.
Problem odd_logits(bool deterministic) {
  Problem p = index_topk({4, 200, 64, 64, 128, 0, deterministic}, whole(200));
  float* weights = p.inputs["weights"].data<float>();
  for (int h = 0; h < 64; ++h) weights[h] = 0, weights[64 + h] = std::nanf("");
  return p;
}

/// The same, in windows that are selected whole all the same.
Problem unscored_logits() {
  Problem p = odd_logits(false);
  std::fill_n(p.inputs["ke"].data<int32_t>(), 4, 50);
  return p;
}

/// `alike` keys differ in nothing but the last bits of their scales, spread over the row: logits that only float32 tells apart.
/// For query 0, whose first head is that key, they are the largest of all; for the others they are among the largest.
Problem alike_keys(int s_kv, int alike, bool deterministic) {
  Problem p = index_topk({3, s_kv, 64, 64, 64, 0, deterministic}, whole(s_kv));
  e4m3* k = p.inputs["k"].data<e4m3>();
  float *scale = p.inputs["k_scale"].data<float>(), *weights = p.inputs["weights"].data<float>();
  for (int i = 0; i < 3 * 64; ++i) weights[i] = std::fabs(weights[i]);
  for (int i = 0; i < alike; ++i) {
    const int column = int(int64_t(i) * s_kv / alike);
    std::copy_n(p.inputs["q"].data<e4m3>(), 64, k + column * 64);
    scale[column] = 1.33f + float(i * 37 % alike) * 0x1p-20f;
  }
  return p;
}

/// The first `alike` keys are permutations of one key, each head looks at one of its dimensions, and all heads weigh the same: equal
/// logits, but for the order in which their terms are rounded. Only who adds as the scorer does finds the same largest ones.
Problem permuted_keys(int alike) {
  constexpr int kDim = 64;
  Problem p = index_topk({3, 1000, 64, kDim, kDim}, whole(1000));
  Tensor &q = p.inputs.at("q"), &k = p.inputs.at("k");
  float *scale = p.inputs["k_scale"].data<float>(), *weights = p.inputs["weights"].data<float>();
  generate::fill(q, 0, q.elements(), 0);
  for (int i = 0; i < 3 * kDim; ++i) {
    generate::set(q, int64_t(i) * kDim + i % kDim, 8);
    weights[i] = 0.1f + 0.01f * float(i / kDim);
  }
  std::mt19937 random(1);
  std::vector<float> key(kDim);
  for (int d = 0; d < kDim; ++d) key[std::size_t(d)] = 1 + 0.125f * float(d % 13);
  for (int column = 0; column < alike; ++column, scale[column - 1] = 1.1f) {
    std::shuffle(key.begin(), key.end(), random);
    for (int d = 0; d < kDim; ++d) generate::set(k, int64_t(column) * kDim + d, key[std::size_t(d)]);
  }
  return p;
}

/// Logits beyond the range of fp16: of query 0 on both sides, of query 1 all below it.
Problem huge_logits(bool deterministic) {
  Problem p = index_topk({3, 200, 64, 64, 64, 0, deterministic}, whole(200));
  float* weights = p.inputs["weights"].data<float>();
  for (int h = 0; h < 64; ++h) weights[h] *= 1e9f, weights[64 + h] = -1e9f * std::fabs(weights[64 + h]);
  return p;
}

/// A sample that is spread evenly over the row, as topk_tiles.hpp names it, sees the large part of it: the bound that it gives is
/// too high.
Problem misleading_sample() {
  constexpr int kColumns = 8192;
  Problem p = index_topk({1, kColumns, 1024, 32, 32}, whole(kColumns));
  float *scale = p.inputs["k_scale"].data<float>(), *weights = p.inputs["weights"].data<float>();
  for (int h = 0; h < 32; ++h) weights[h] = std::fabs(weights[h]);
  for (int column = 0; column < kColumns; ++column)
    if (is_sampled(column, kColumns)) scale[column] *= 8;
  return p;
}

std::string name_of(const Sizes& s) {
  return "s_q:" + std::to_string(s.s_q) + "/s_kv:" + std::to_string(s.s_kv) + "/h_i:" + std::to_string(s.h_i) +
         "/d_i:" + std::to_string(s.d_i) + "/topk:" + std::to_string(s.topk);
}

}  // namespace

std::vector<Case> index_topk_cases() {
  std::vector<Case> cases;
  const auto add = [&](CaseKind kind, std::string name, std::string what, std::function<Problem()> make) {
    cases.push_back({Stage::kIndexTopk, kind, std::move(name), std::move(what), std::move(make)});
  };
  const auto small = [&](std::string name, std::string what, std::function<Problem()> make) {
    add(CaseKind::kSmall, std::move(name), std::move(what), std::move(make));
  };
  for (int h_i : {32, 64})
    for (int d_i : {64, 128})
      small("basic/h_i:" + std::to_string(h_i) + "/d_i:" + std::to_string(d_i), "random data",
            [=] { return index_topk({3, 300, 64, h_i, d_i}, whole(300)); });
  small("causal", "rows with fewer columns than topk, and with more", [] {
    return index_topk({90, 90, 64}, suffix(90, 90));
  });
  for (bool deterministic : {false, true}) {
    const std::string mode = deterministic ? "/deterministic" : "";
    small("odd_windows" + mode, "empty, inverted and overlong windows, and such around topk", [=] {
      return index_topk({int(kOddWindows.size()), 130, 64, 32, 64, 0, deterministic},
                        [](int64_t i) { return kOddWindows[std::size_t(i)]; });
    });
    small("odd_logits" + mode, "ties everywhere, and a query without a single number", [=] { return odd_logits(deterministic); });
  }
  small("unscored", "windows that are selected whole though their logits are equal or NaN", unscored_logits);
  for (int chunk : {1, 2, 3, 7, 100}) {
    small("chunk:" + std::to_string(chunk), "the scratch holds the logits of so many queries", [=] {
      return index_topk({7, 220, 64, 64, 128, chunk}, suffix(7, 220));
    });
  }
  small("longer", "several pieces of a row, more than one tile of queries", [] {
    return index_topk({9, 4500, 512, 32, 64, 4}, suffix(9, 4500));
  });
  for (int alike : {300, 511, 512, 513}) {
    small("alike:" + std::to_string(alike), "logits that only float32 tells apart, in every capacity", [=] {
      return alike_keys(1000, alike, false);
    });
  }
  small("alike:300/deterministic", "the same", [] { return alike_keys(1000, 300, true); });
  small("alike:all", "the same, and no others", [] { return alike_keys(333, 333, true); });
  for (int alike : {300, 600}) {
    small("permuted_keys:" + std::to_string(alike), "logits that differ in the rounding of their sums only", [=] {
      return permuted_keys(alike);
    });
  }
  for (bool deterministic : {false, true})
    small(std::string("huge_logits") + (deterministic ? "/deterministic" : ""), "beyond the range of fp16", [=] {
      return huge_logits(deterministic);
    });
  small("misleading_sample", "a sample sees the large half of a row", misleading_sample);
  small("topk:1", "the largest alone", [] { return index_topk({2, 130, 1}, whole(130)); });
  small("s_kv:2", "the larger of two", [] { return index_topk({5, 2, 1}, whole(2)); });
  small("s_q:0", "no queries", [] { return index_topk({0, 64}, whole(64)); });
  small("s_kv:0", "no keys", [] { return index_topk({2, 0}, whole(0)); });

  const Sizes few{4, 4096, 2048};
  add(CaseKind::kExplain, name_of(few) + "/causal", "four queries", [=] { return index_topk(few, suffix(few.s_q, few.s_kv)); });
  add(CaseKind::kLarge, "longer_than_smem", "16-bit keys of a row do not fit in 227 KiB", [] {
    return index_topk({3, 120000, 300, 32, 32}, whole(120000));
  });
  add(CaseKind::kLarge, "s_q:70000", "more queries than a grid's y axis may have", [] {
    return index_topk({70000, 256, 64, 64, 128, 30000}, whole(256));
  });
  for (Sizes s : {Sizes{4096, 4096, 2048}, Sizes{8192, 8192, 2048}, Sizes{4096, 32768, 2048}}) {
    const auto make = [=] {
      Sizes bounded = s;
      bounded.chunk = int(std::min<int64_t>(s.s_q, kLogitsScratchBytes / (4 * int64_t(s.s_kv))));
      return index_topk(bounded, suffix(s.s_q, s.s_kv));
    };
    add(CaseKind::kLarge, "causal/" + name_of(s), "DeepSeek-V3.2 shapes", make);
    add(CaseKind::kBench, name_of(s) + "/causal", "prefill", make);
  }
  return cases;
}

}  // namespace dsa::harness

#include <climits>
#include <cmath>
#include <limits>

#include "indexer_data.hpp"

namespace dsa::harness {

namespace {

struct Sizes {
  int s_q = 2, s_kv = 130, h_i = 64, d_i = 128;
  int64_t stride = 0;  ///< 0: rows begin on 16-byte boundaries
  bool clean = true;
  uint64_t seed = 1;
};

Problem indexer(const Sizes& s, const Window& window) {
  IndexerArgs a;
  a.s_q = s.s_q;
  a.s_kv = s.s_kv;
  a.h_i = s.h_i;
  a.d_i = s.d_i;
  a.clean = s.clean;
  a.logits_stride = s.stride ? s.stride : (s.s_kv + 3) / 4 * 4;
  return {a, scoring_inputs(s.s_q, s.s_kv, s.h_i, s.d_i, s.seed, window)};
}

/// Windows of every odd kind, one per query.
const std::vector<std::pair<int32_t, int32_t>> kOddWindows = {
    {0, 0},   {50, 50},   {90, 10}, {-7, 20}, {100, 1000}, {INT_MIN, INT_MAX}, {INT_MAX, INT_MIN},
    {-9, -3}, {500, 900}, {1, 2},   {63, 65}, {64, 128},   {127, 130},         {129, 130}};

Window odd_windows() {
  return [](int64_t i) { return kOddWindows[std::size_t(i)]; };
}

/// Queries that see only columns of their own request: (queries, tokens) per request.
Window ragged(const std::vector<std::pair<int, int>>& requests) {
  std::vector<std::pair<int32_t, int32_t>> windows;
  int32_t start = 0;
  for (const auto& [queries, tokens] : requests) {
    for (int i = 0; i < queries; ++i) windows.emplace_back(start, start + tokens - queries + i + 1);
    start += tokens;
  }
  return [windows](int64_t i) { return windows[std::size_t(i)]; };
}

/// Two heads whose products have opposite signs: exactly -2; -12 without the ReLU, 0 with a second one on the
/// sum.
Problem relu_per_head() {
  Problem p = indexer({1, 70, 64, 128}, whole(70));
  for (const char* name : {"q", "k", "weights", "k_scale"}) {
    Tensor& t = p.inputs.at(name);
    generate::fill(t, 0, t.elements(), std::string(name) == "k_scale" ? 1 : 0);
  }
  generate::set(p.inputs.at("q"), 0, 1);
  generate::set(p.inputs.at("q"), 128, -1);
  for (int j = 0; j < 70; ++j) generate::set(p.inputs.at("k"), j * 128, 2);
  generate::set(p.inputs.at("weights"), 0, -1);
  generate::set(p.inputs.at("weights"), 1, 5);
  return p;
}

bool relu_matters(const Problem& p) {
  return run_reference(p).at("logits").at(0) == -2;
}

Problem nan_keys() {
  Problem p = indexer({3, 130, 64, 128}, [](int64_t i) { return std::pair(int32_t(10 * i), int32_t(100)); });
  Tensor& k = p.inputs.at("k");
  for (int64_t row : {40, 110}) std::fill_n(k.data<e4m3>() + row * 128, 128, e4m3{0x7f});
  return p;
}

bool nan_inside_and_outside(const Problem& p) {
  return std::isnan(p.inputs.at("k").at(40 * 128)) && std::isnan(p.inputs.at("k").at(110 * 128)) &&
         run_reference(p).at("logits").at(40) == 0;
}

Problem zero_rows() {
  Problem p = indexer({2, 130, 64, 128}, whole(130));
  generate::fill(p.inputs.at("k"), 7 * 128, 8 * 128, 0);
  generate::set(p.inputs.at("k_scale"), 7, 1e-4f / 448);
  generate::fill(p.inputs.at("q"), 64 * 128, 2 * 64 * 128, 0);  // query 1: all logits 0, an exact plateau
  return p;
}

Problem largest_values() {
  Problem p = indexer({2, 130, 64, 128}, whole(130));
  for (const char* name : {"q", "k"}) {
    Tensor& t = p.inputs.at(name);
    for (int64_t i = 0; i < t.elements(); ++i) {
      generate::set(t, i, generate::hash(9, uint64_t(i)) & 1 || name[0] == 'k' ? 448.f : -448.f);
    }
  }
  return p;
}

/// Every product is 128 times 448 * 448, or its negative: as far from 0 as there is.
Problem largest_products() {
  Problem p = indexer({5, 130, 64, 128}, whole(130));
  Tensor &q = p.inputs.at("q"), &k = p.inputs.at("k");
  generate::fill(q, 0, q.elements(), 448);
  for (int64_t i = 0; i < k.elements(); ++i) generate::set(k, i, generate::hash(13, uint64_t(i / 128)) & 1 ? 448.f : -448.f);
  return p;
}

bool products_are_largest(const Problem& p) {
  return std::fabs(p.inputs.at("q").at(0) * p.inputs.at("k").at(0)) * 128 == 448 * 448 * 128;
}

/// The smallest subnormals: products of 2^-18, of either sign.
Problem smallest_products() {
  Problem p = indexer({5, 130, 64, 128}, whole(130));
  for (const char* name : {"q", "k"}) {
    Tensor& t = p.inputs.at(name);
    for (int64_t i = 0; i < t.elements(); ++i) generate::set(t, i, generate::hash(14, uint64_t(i)) & 1 ? 0x1p-9f : -0x1p-9f);
  }
  return p;
}

/// NaN in some heads of query 1, and in all of query 2.
Problem nan_queries(int h_i) {
  Problem p = indexer({6, 130, h_i, 128}, whole(130));
  e4m3* q = p.inputs.at("q").data<e4m3>();
  for (int h : {0, 5, h_i - 1}) q[(h_i + h) * 128 + 3 * h % 128] = e4m3{0x7f};
  std::fill_n(q + 2 * h_i * 128, h_i * 128, e4m3{0xff});
  return p;
}

bool nan_query_gives_zeros(const Problem& p) {
  const auto& args = std::get<IndexerArgs>(p.args);
  const Tensor logits = run_reference(p).at("logits");
  return logits.at(2 * args.logits_stride + 7) == 0 && std::isfinite(logits.at(args.logits_stride + 7));
}

/// Weights that are NaN or infinite in one query each, and queries without them in between.
Problem odd_weights(int h_i) {
  Problem p = indexer({9, 130, h_i, 128}, whole(130));
  Tensor& w = p.inputs.at("weights");
  const float infinity = std::numeric_limits<float>::infinity();
  generate::set(w, 1 * h_i + 3, std::numeric_limits<float>::quiet_NaN());
  generate::set(w, 3 * h_i + h_i - 1, infinity);
  generate::set(w, 4 * h_i, -infinity);
  generate::fill(w, 5 * h_i, 6 * h_i, 0);
  generate::fill(w, 6 * h_i, 7 * h_i, -0.0f);
  for (int h = 0; h < h_i; ++h) generate::set(w, 7 * h_i + h, -std::fabs(w.at(7 * h_i + h)));
  return p;
}

/// As odd_weights, scales: NaN, infinite, 0, and negative.
Problem odd_scales() {
  Problem p = indexer({3, 130, 64, 128}, whole(130));
  Tensor& scale = p.inputs.at("k_scale");
  const float infinity = std::numeric_limits<float>::infinity();
  const std::vector<std::pair<int, float>> odd = {
      {5, std::numeric_limits<float>::quiet_NaN()}, {64, infinity}, {70, -infinity}, {90, 0}, {129, -2}};
  for (const auto& [column, x] : odd) generate::set(scale, column, x);
  return p;
}

bool some_nan(const Problem& p) {
  const Tensor logits = run_reference(p).at("logits");
  int64_t nan = 0, finite = 0;
  for (int64_t i = 0; i < logits.elements(); ++i) {
    nan += std::isnan(logits.at(i));
    finite += std::isfinite(logits.at(i));
  }
  return nan > 0 && finite > 0;
}

/// Windows that have nothing to do with each other, some empty, inverted or beyond the keys.
Window jumping_windows(int s_kv) {
  return [=](int64_t i) {
    const auto column = [=](uint64_t k) { return int32_t(generate::hash(11, 2 * uint64_t(i) + k) % uint64_t(s_kv + 200)) - 100; };
    return std::pair(column(0), column(1));
  };
}

/// Three blocks of two queries with a long window, then six with a short one, and so on.
Window long_and_short() {
  return [](int64_t i) {
    const int32_t begin = int32_t(10 * (i % 30));
    return i / 2 % 9 < 3 ? std::pair(0, 700) : std::pair(begin, begin + 20);
  };
}

bool has_every_odd_window(const Problem& p) {
  const auto& args = std::get<IndexerArgs>(p.args);
  bool inverted = false, negative = false, beyond = false;
  for (int64_t i = 0; i < args.s_q; ++i) {
    const double ks = p.inputs.at("ks").at(i), ke = p.inputs.at("ke").at(i);
    inverted = inverted || ke < ks;
    negative = negative || ks < 0;
    beyond = beyond || ke > args.s_kv;
  }
  return inverted && negative && beyond;
}

std::string bench_name(const Sizes& s) {
  return "s_q:" + std::to_string(s.s_q) + "/s_kv:" + std::to_string(s.s_kv) +
         "/h_i:" + std::to_string(s.h_i) + "/d_i:" + std::to_string(s.d_i);
}

}  // namespace

std::vector<Case> indexer_cases() {
  std::vector<Case> cases;
  const auto add = [&](CaseKind kind, std::string name, std::string what, std::function<Problem()> make,
                       std::function<bool(const Problem&)> holds = nullptr) {
    cases.push_back(
        {Stage::kIndexer, kind, std::move(name), std::move(what), std::move(make), std::move(holds)});
  };
  for (int h_i : {32, 64}) {
    for (int d_i : {64, 128}) {
      const Sizes s{2, 130, h_i, d_i};
      add(CaseKind::kSmall, "basic/h_i:" + std::to_string(h_i) + "/d_i:" + std::to_string(d_i),
          "every shape of DeepSeek's indexers, with a tail of columns",
          [s] { return indexer(s, whole(130)); });
    }
  }
  for (int s_kv : {1, 63, 64, 65, 257}) {
    add(CaseKind::kSmall, "s_kv:" + std::to_string(s_kv), "column counts around the tile sizes", [s_kv] {
      return indexer({1, s_kv}, whole(s_kv));
    });
  }
  add(CaseKind::kSmall, "s_q:5", "a number of queries that no tile divides", [] {
    return indexer({5, 96}, whole(96));
  });
  add(CaseKind::kSmall, "d_i:32", "a width whose rows are shorter than a 128-byte swizzle row", [] {
    return indexer({2, 70, 32, 32}, whole(70));
  });
  for (bool clean : {true, false}) {
    add(
        CaseKind::kSmall, clean ? "odd_windows" : "odd_windows/raw",
        "inverted, negative, empty and overlong windows",
        [clean] {
          return indexer({int(kOddWindows.size()), 130, 32, 64, 0, clean}, odd_windows());
        },
        has_every_odd_window);
  }
  add(CaseKind::kSmall, "causal", "each query sees itself and what came before", [] {
    return indexer({4, 100}, suffix(4, 100));
  });
  add(CaseKind::kSmall, "ragged",
      "three requests in one batch, one with a single query and one without a prefix", [] {
        return indexer({9, 83}, ragged({{3, 10}, {1, 67}, {5, 6}}));
      });
  // Long enough that every ring of buffers goes round, and that tiles of one block of queries lie far apart.
  for (const auto& [h_i, d_i] : {std::pair(32, 64), std::pair(64, 128)}) {
    const std::string shape = "/h_i:" + std::to_string(h_i) + "/d_i:" + std::to_string(d_i);
    add(CaseKind::kSmall, "packed" + shape, "five requests of 12 queries and 97 tokens", [=] {
      return indexer({60, 485, h_i, d_i}, ragged({{12, 97}, {12, 97}, {12, 97}, {12, 97}, {12, 97}}));
    });
    add(CaseKind::kSmall, "jumping_windows" + shape, "windows of neighbours that do not overlap",
        [=] { return indexer({17, 1333, h_i, d_i}, jumping_windows(1333)); });
  }
  add(CaseKind::kSmall, "s_kv:4500", "few queries and many columns, shared by all CTAs",
      [] { return indexer({5, 4500, 32, 64}, suffix(5, 4500)); });
  add(CaseKind::kSmall, "long_and_short", "blocks of many tiles, and then some of one", [] {
    return indexer({60, 700, 64, 64}, long_and_short());
  });
  add(CaseKind::kSmall, "begin:100", "tiles that do not end where a piece of work does",
      [] { return indexer({4, 2000, 32, 64}, [](int64_t i) { return std::pair(int32_t(100 + i), 1990); }); });
  add(CaseKind::kSmall, "s_kv:8300", "more columns than a piece of work may have",
      [] { return indexer({3, 8300, 32, 32}, jumping_windows(8300)); });
  add(
      CaseKind::kSmall, "padded_rows",
      "rows further apart than they are long: the padding must stay untouched",
      [] {
        return indexer({3, 130, 64, 128, 256}, suffix(3, 130));
      },
      [](const Problem& p) { return std::get<IndexerArgs>(p.args).logits_stride > 130; });
  add(CaseKind::kSmall, "padded_rows/raw", "the same in the raw mode", [] {
    return indexer({3, 130, 64, 128, 256, false}, suffix(3, 130));
  });
  add(CaseKind::kSmall, "odd_stride", "rows that begin on 4-byte boundaries only", [] {
    return indexer({3, 131, 64, 128, 131}, whole(131));
  });
  add(CaseKind::kSmall, "relu_per_head", "ReLU before the sum over heads and not after it", relu_per_head,
      relu_matters);
  add(CaseKind::kSmall, "nan_keys", "NaN keys give 0 inside the window and nothing outside", nan_keys,
      nan_inside_and_outside);
  add(CaseKind::kSmall, "zero_rows", "a key of zeros, and a query of zeros: logits exactly 0", zero_rows);
  add(CaseKind::kSmall, "largest_values", "the largest e4m3 values", largest_values);
  add(CaseKind::kSmall, "largest_products", "the largest products, of either sign", largest_products, products_are_largest);
  add(CaseKind::kSmall, "smallest_products", "the smallest products, of either sign", smallest_products);
  for (int h_i : {32, 64}) {
    const std::string heads = "/h_i:" + std::to_string(h_i);
    add(CaseKind::kSmall, "nan_queries" + heads, "NaN in q gives 0 for its head, and nothing to neighbours",
        [=] { return nan_queries(h_i); }, nan_query_gives_zeros);
    add(CaseKind::kSmall, "odd_weights" + heads, "weights that are NaN, infinite, 0, -0 or negative",
        [=] { return odd_weights(h_i); }, some_nan);
  }
  add(CaseKind::kSmall, "odd_scales", "key scales that are NaN, infinite, 0 or negative", odd_scales, some_nan);
  add(CaseKind::kSmall, "s_q:0", "no queries", [] { return indexer({0, 64}, whole(64)); });
  add(CaseKind::kSmall, "s_kv:0", "no keys", [] { return indexer({2, 0}, whole(0)); });

  const Sizes wide{32832, 65536, 64, 128, 0, true, 2};
  add(
      CaseKind::kLarge, "2^31_logits", "row offsets beyond 2^31 elements",
      [=] {
        return indexer(wide, [=](int64_t i) {
          return i >= wide.s_q - 64 ? std::pair(0, wide.s_kv) : std::pair(wide.s_kv - 128, wide.s_kv);
        });
      },
      [=](const Problem&) { return int64_t(wide.s_q) * wide.s_kv > int64_t(1) << 31; });
  add(CaseKind::kLarge, "s_q:70000", "more queries than a grid's y axis may have", [] {
    return indexer({70000, 256}, whole(256));
  });
  for (const Sizes s : {Sizes{4096, 8192, 32, 128}, Sizes{4096, 8192, 32, 64}})
    add(CaseKind::kLarge, "whole/" + bench_name(s), "few heads, so that stores of logits hold up the loads behind them",
        [=] { return indexer(s, whole(s.s_kv)); });
  const Sizes few{4, 1024};
  add(CaseKind::kExplain, bench_name(few) + "/causal", "four queries, a thousand keys",
      [=] { return indexer(few, suffix(few.s_q, few.s_kv)); });
  for (const Sizes s : {Sizes{4096, 4096}, Sizes{8192, 8192}, Sizes{4096, 32768}}) {
    add(CaseKind::kLarge, "causal/" + bench_name(s), "DeepSeek-V3.2 shapes",
        [=] { return indexer(s, suffix(s.s_q, s.s_kv)); });
    add(CaseKind::kBench, bench_name(s) + "/causal", "prefill",
        [=] { return indexer(s, suffix(s.s_q, s.s_kv)); });
  }
  const Sizes packed{4096, 4096};
  add(CaseKind::kBench, bench_name(packed) + "/packed", "16 requests of 256 tokens", [=] {
    return indexer(packed, ragged(std::vector<std::pair<int, int>>(16, {256, 256})));
  });
  const Sizes full{4096, 8192, 32, 64};
  add(CaseKind::kBench, bench_name(full), "every query sees every key", [=] { return indexer(full, whole(full.s_kv)); });
  return cases;
}

}  // namespace dsa::harness

// The top-k selector: judged by what the contract promises, and the deterministic mode by its exact columns.
#include "reference/topk.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <climits>
#include <cmath>
#include <functional>
#include <limits>
#include <set>

#include "problems.hpp"

using namespace dsa;

namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
const float kNan = std::nanf("");

std::vector<int32_t> select(const std::vector<float>& logits, int topk, bool deterministic, int ks = 0,
                            int ke = INT_MAX) {
  TopkArgs args;
  args.rows = 1;
  args.n = int(logits.size());
  args.topk = topk;
  args.deterministic = deterministic;
  args.logits_stride = args.n;
  args.logits = logits.data();
  args.ks = &ks;
  args.ke = &ke;
  return reference::topk_row(args, 0);
}

/// What the deterministic mode must give, by selecting one column after the other.
std::vector<int32_t> brute_select(const std::vector<float>& logits, int topk, int ks, int ke) {
  std::vector<bool> taken(logits.size(), false);
  std::set<int32_t> columns;
  for (int round = 0; round < topk; ++round) {
    int best = -1;
    for (int j = std::max(ks, 0); j < std::min<int64_t>(ke, logits.size()); ++j) {
      if (taken[j] || std::isnan(logits[j]) || logits[j] == -kInf) continue;
      if (best < 0 || logits[j] > logits[best]) best = j;
    }
    if (best < 0) break;
    taken[best] = true;
    columns.insert(best);
  }
  std::vector<int32_t> result(columns.begin(), columns.end());
  result.resize(topk, -1);
  return result;
}

std::vector<int32_t> sorted(std::vector<int32_t> columns) {
  std::sort(columns.begin(), columns.end());
  return columns;
}

}  // namespace

TEST_CASE("topk: an example by hand") {
  const std::vector<float> logits = {0.5f, 3.0f, -1.0f, 3.0f, kNan, -kInf, 2.0f};
  CHECK(select(logits, 3, true) == std::vector<int32_t>{1, 3, 6});
  CHECK(select(logits, 3, false) == std::vector<int32_t>{1, 3, 6});
  CHECK(select(logits, 4, false) == std::vector<int32_t>{1, 3, 6, 0});
  CHECK(select(logits, 4, true) == std::vector<int32_t>{0, 1, 3, 6});
  CHECK(select(logits, 9, true) == std::vector<int32_t>{0, 1, 2, 3, 6, -1, -1, -1, -1});
  CHECK(select(logits, 1, true, 2, 4) == std::vector<int32_t>{3});
  CHECK(select(logits, 2, true, 4, 6) == std::vector<int32_t>{-1, -1});
  CHECK(select(logits, 0, true).empty());
}

TEST_CASE("topk: both modes against selecting one after the other") {
  test::Random random(1);
  for (int trial = 0; trial < 300; ++trial) {
    CAPTURE(trial);
    const int n = random.integer(0, 60);
    std::vector<float> logits(n);
    for (float& x : logits) {
      const int kind = random.integer(0, 9);
      x = kind == 0   ? kNan
          : kind == 1 ? -kInf
          : kind == 2 ? kInf
          : kind < 6  ? 0.0f
                      : float(random.integer(-4, 4));
      if (random.integer(0, 1)) x = -x;
    }
    const int topk = random.integer(0, 70);
    const int ks = random.integer(-5, n + 5), ke = random.integer(-5, n + 5);
    const std::vector<int32_t> want = brute_select(logits, topk, ks, ke);
    CHECK(select(logits, topk, true, ks, ke) == want);
    const std::vector<int32_t> free = select(logits, topk, false, ks, ke);
    CHECK(sorted(free) == sorted(want));
    for (std::size_t j = 1; j < free.size(); ++j) CHECK((free[j] >= 0) <= (free[j - 1] >= 0));
  }
}

TEST_CASE("T-02: a plateau of equal values") {
  std::vector<float> logits(8320, 0.0f);
  test::Random random(2);
  std::set<int32_t> winners;
  while (winners.size() < 100) winners.insert(random.integer(0, 8319));
  for (int32_t column : winners) logits[column] = random.uniform(0.5f, 2.0f);
  const std::vector<int32_t> columns = select(logits, 2048, false);
  const std::set<int32_t> distinct(columns.begin(), columns.end());
  CHECK(distinct.size() == 2048);
  CHECK(*distinct.begin() >= 0);
  CHECK(std::includes(distinct.begin(), distinct.end(), winners.begin(), winners.end()));

  for (const float value : {0.0f, 1.0f, -3.0f}) {
    for (const int n : {2049, 4097, 100000}) {
      const std::vector<int32_t> row = select(std::vector<float>(n, value), 2048, true);
      bool lowest = true;
      for (int j = 0; j < 2048; ++j) lowest = lowest && row[j] == j;
      CHECK(lowest);
    }
  }
}

TEST_CASE("T-02: winners at the edges of a row") {
  std::vector<float> logits(4097, 0.0f);
  for (int column : {0, 1, 2047, 2048, 4096}) logits[column] = 1.0f;
  CHECK(select(logits, 5, true) == std::vector<int32_t>{0, 1, 2047, 2048, 4096});
}

TEST_CASE("T-04: fewer candidates than topk leave -1 in the rest") {
  for (const int n : {0, 1, 5, 2047, 2048, 2049}) {
    CAPTURE(n);
    test::Random random(n);
    const std::vector<float> logits = random.floats(3000);
    int32_t ks = 17, ke = 17 + n;
    for (const bool deterministic : {false, true}) {
      std::vector<int32_t> indices(2048, 0x7f7f7f7f);
      TopkArgs args;
      args.rows = 1;
      args.n = 3000;
      args.topk = 2048;
      args.deterministic = deterministic;
      args.logits_stride = 3000;
      args.logits = logits.data();
      args.ks = &ks;
      args.ke = &ke;
      args.indices = indices.data();
      reference::topk(args);
      const int count = std::min(n, 2048);
      const std::set<int32_t> distinct(indices.begin(), indices.begin() + count);
      CHECK(int(distinct.size()) == count);
      if (count > 0) CHECK((*distinct.begin() >= 17 && *distinct.rbegin() < 17 + n));
      CHECK(std::count(indices.begin() + count, indices.end(), -1) == 2048 - count);
    }
  }
}

TEST_CASE("T-06: infinities and values past the range of fp16") {
  std::vector<float> logits(51, -kInf);
  logits[3] = -1e30f;
  logits[20] = 7e4f;
  logits[50] = -7e4f;
  std::vector<int32_t> want = {3, 20, 50};
  want.resize(16, -1);
  CHECK(select(logits, 16, true) == want);

  logits = {7e4f,
            kInf,
            1e30f,
            -1e30f,
            6.5e4f,
            -std::numeric_limits<float>::max(),
            std::numeric_limits<float>::max(),
            -kInf};
  CHECK(select(logits, 8, false) == std::vector<int32_t>{1, 6, 2, 0, 4, 3, 5, -1});
  CHECK(select({kNan, -kNan, -kInf}, 2, false) == std::vector<int32_t>{-1, -1});
}

TEST_CASE("T-07: -0 and +0 are the same value") {
  const std::vector<float> logits = {-0.0f, 0.0f, -0.0f, 0.0f, -1.0f, 0.0f};
  CHECK(select(logits, 3, true) == std::vector<int32_t>{0, 1, 2});
  CHECK(select(logits, 5, true) == std::vector<int32_t>{0, 1, 2, 3, 5});
}

TEST_CASE("topk: rows have their own window and stride, and nothing outside is a candidate") {
  const int rows = 4, n = 20;
  const int64_t stride = 23;
  test::Random random(3);
  std::vector<float> logits(rows * stride, kInf);
  const std::vector<int32_t> ks = {0, 3, 19, -4}, ke = {20, 9, 20, 2};
  for (int i = 0; i < rows; ++i) {
    for (int j = std::max(0, ks[i]); j < ke[i]; ++j) logits[i * stride + j] = random.normal();
  }
  std::vector<int32_t> indices(rows * 5 + 1, 77);
  TopkArgs args;
  args.rows = rows;
  args.n = n;
  args.topk = 5;
  args.deterministic = true;
  args.logits_stride = stride;
  args.logits = logits.data();
  args.ks = ks.data();
  args.ke = ke.data();
  args.indices = indices.data();
  reference::topk(args);
  for (int i = 0; i < rows; ++i) {
    const std::vector<float> row(logits.begin() + i * stride, logits.begin() + i * stride + n);
    CHECK(std::vector<int32_t>(indices.begin() + i * 5, indices.begin() + i * 5 + 5) ==
          brute_select(row, 5, ks[i], ke[i]));
  }
  CHECK(indices.back() == 77);
}

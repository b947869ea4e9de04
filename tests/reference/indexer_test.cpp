// The lightning indexer against plain loops and examples by hand.
#include "reference/indexer.hpp"

#include <doctest/doctest.h>

#include <climits>
#include <cmath>
#include <limits>

#include "brute_force.hpp"
#include "problems.hpp"
#include "reference/window.hpp"

using namespace dsa;

namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kPoison = 12345.0f;

struct IndexerProblem {
  IndexerArgs base;
  std::vector<e4m3> q, k;
  std::vector<float> k_scale, weights, logits;
  std::vector<int32_t> ks, ke;

  IndexerProblem(int s_q, int s_kv, int h_i, int d_i, uint64_t seed) {
    test::Random random(seed);
    base.s_q = s_q;
    base.s_kv = s_kv;
    base.h_i = h_i;
    base.d_i = d_i;
    base.logits_stride = s_kv + 3;
    q = random.e4m3s(int64_t(s_q) * h_i * d_i);
    k = random.e4m3s(int64_t(s_kv) * d_i);
    weights = random.floats(int64_t(s_q) * h_i);
    for (int j = 0; j < s_kv; ++j) k_scale.push_back(random.uniform(0.001f, 0.1f));
    ks.assign(s_q, 0);
    ke.assign(s_q, s_kv);
  }

  IndexerArgs args() {
    logits.assign(base.s_q * base.logits_stride, kPoison);
    IndexerArgs bound = base;
    bound.q = q.data();
    bound.k = k.data();
    bound.k_scale = k_scale.data();
    bound.weights = weights.data();
    bound.ks = ks.data();
    bound.ke = ke.data();
    bound.logits = logits.data();
    return bound;
  }
};

}  // namespace

TEST_CASE("L-01: ReLU on every head, not on the sum") {
  // Head 0 = +e0, head 1 = -e0, k = 2 e0, weights -1 and 5: only head 0 passes the ReLU, so -1 * 2 = -2.
  IndexerProblem problem(1, 1, 64, 128, 1);
  for (e4m3& x : problem.q) x.bits = 0;
  for (e4m3& x : problem.k) x.bits = 0;
  problem.q[0].bits = 0x38;          // 1
  problem.q[128].bits = 0xb8;        // -1
  problem.k[0].bits = 0x40;          // 2
  problem.weights.assign(64, 3.0f);  // of heads whose dot product is 0
  problem.weights[0] = -1.0f;
  problem.weights[1] = 5.0f;
  problem.k_scale = {1.0f};
  CHECK(reference::indexer_row(problem.args(), 0)[0] == -2.0);
  problem.k_scale = {0.25f};
  CHECK(reference::indexer_row(problem.args(), 0)[0] == -0.5);
}

TEST_CASE("L-13: a key of zeros has logit exactly 0") {
  IndexerProblem problem(2, 10, 32, 64, 2);
  for (int d = 0; d < 64; ++d) problem.k[7 * 64 + d].bits = d % 2 ? 0x80 : 0x00;
  problem.k_scale[7] = 1e-4f / 448.0f;
  CHECK(reference::indexer_row(problem.args(), 1)[7] == 0.0);
}

TEST_CASE("indexer: max(NaN, 0) is 0") {
  IndexerProblem problem(1, 3, 32, 64, 3);
  problem.k[64].bits = 0x7f;  // key 1: every dot product is NaN
  const reference::RowVector logits = reference::indexer_row(problem.args(), 0);
  CHECK(logits[1] == 0.0);
  CHECK(test::worst_error(logits.data(), test::brute_indexer_row(problem.args(), 0)) < 1e-12);
  problem.q[5 * 64].bits = 0xff;  // head 5 drops out of all keys
  CHECK(test::worst_error(reference::indexer_row(problem.args(), 0).data(),
                          test::brute_indexer_row(problem.args(), 0)) < 1e-12);
}

TEST_CASE("indexer: rows and whole against plain loops, with windows") {
  for (const bool clean : {true, false}) {
    IndexerProblem problem(9, 37, 32, 64, 4);
    problem.base.clean = clean;
    problem.ks = {0, 5, 36, 37, 20, -7, INT_MIN, 30, 100};
    problem.ke = {37, 6, 37, 37, 10, 4, INT_MAX, 1000, 200};
    const IndexerArgs args = problem.args();
    reference::indexer(args);
    for (int i = 0; i < 9; ++i) {
      CAPTURE(i);
      const std::vector<double> want = test::brute_indexer_row(args, i);
      CHECK(test::worst_error(reference::indexer_row(args, i).data(), want) < 1e-12);
      for (int j = 0; j < args.logits_stride; ++j) {
        const float got = args.logits[i * args.logits_stride + j];
        const bool inside = j < args.s_kv && j >= problem.ks[i] && j < problem.ke[i];
        if (inside) {
          CHECK(std::fabs(got - want[j]) <= 1e-7 * std::fabs(want[j]));
        } else if (clean && j < args.s_kv) {
          CHECK(got == -kInf);
        } else {
          CHECK(got == kPoison);
        }
      }
    }
  }
}

TEST_CASE("window: clamped to [0, n) and never reversed") {
  const struct {
    int32_t ks, ke;
    int begin, end;
  } cases[] = {{0, 10, 0, 10}, {3, 3, 3, 3},          {7, 2, 7, 7},
               {-5, 4, 0, 4},  {4, 99, 4, 10},        {50, 60, 10, 10},
               {-9, -3, 0, 0}, {60, INT_MIN, 10, 10}, {INT_MIN, INT_MAX, 0, 10}};
  for (const auto& c : cases) {
    const reference::Window got = reference::clamp_window(c.ks, c.ke, 10);
    CHECK(got.begin == c.begin);
    CHECK(got.end == c.end);
  }
}

// Sparse MLA backward: against plain loops, against finite differences, and the contract line by line.
#include "reference/sparse_mla_bwd.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "brute_force.hpp"
#include "problems.hpp"

using namespace dsa;
using test::BackwardProblem;
using test::ForwardProblem;

namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

BackwardProblem backward_of(ForwardProblem forward, uint64_t seed) {
  BackwardProblem problem(std::move(forward), seed);
  test::brute_forward_outputs(problem.forward.args());
  return problem;
}

/// Every public function against the plain loops.
double brute_error(BackwardProblem& problem) {
  const SparseMlaBwdArgs args = problem.args();
  const test::BruteGradient want = test::brute_backward(args);
  const reference::Matrix dkv = reference::sparse_mla_bwd_dkv(args);
  double worst = test::worst_error(std::vector<double>(dkv.data(), dkv.data() + dkv.size()), want.dkv);
  for (int batch = 0; batch < args.b; ++batch) {
    for (int query = 0; query < args.s_q; ++query) {
      const reference::QueryGradient got = reference::sparse_mla_bwd_query(args, batch, query);
      const int64_t first = (int64_t(batch) * args.s_q + query) * args.h_q;
      const auto dq = want.dq.begin() + first * kDimQK;
      const auto delta = want.delta.begin() + first;
      worst = std::max(worst, test::worst_error(got.dq.data(), {dq, dq + args.h_q * kDimQK}));
      worst = std::max(worst, test::worst_error(got.delta.data(), {delta, delta + args.h_q}));
    }
    for (int row = 0; row < args.s_kv; ++row) {
      for (int group = 0; group < args.g; ++group) {
        const auto dkv_row =
            want.dkv.begin() + ((int64_t(batch) * args.s_kv + row) * args.g + group) * kDimQK;
        worst = std::max(worst,
                         test::worst_error(reference::sparse_mla_bwd_dkv_row(args, batch, row, group).data(),
                                           {dkv_row, dkv_row + kDimQK}));
      }
    }
  }
  return worst;
}

/// The scalar whose gradient the backward is. With delta = out . d_out computed from the exact output it
/// would be sum(out * d_out); the contract computes delta from the *rounded* output it is given. The second
/// term accounts for that: (exact delta - given delta) * log(sum_j exp(logit_j) + exp(sink)) has the gradient
/// (exact delta - given delta) * P, which is what the rounding changes in dS. So nothing but float64 is left
/// between this function and the backward.
double loss(const SparseMlaBwdArgs& args, const std::vector<double>& q, const std::vector<double>& kv,
            const std::vector<double>& delta_error) {
  const SparseMlaFwdArgs forward = test::forward_args(args);
  double sum = 0;
  for (int64_t row = 0; row < int64_t(args.b) * args.s_q * args.h_q; ++row) {
    const int64_t head = row % args.h_q;
    const test::BruteRow result =
        test::brute_forward(forward, q, kv, row / args.h_q / args.s_q, row / args.h_q % args.s_q, head);
    if (result.lse == double(kInf)) continue;
    for (int d = 0; d < kDimV; ++d) sum += result.out[d] * test::value_of(args.d_out[row * kDimV + d]);
    double lse = result.lse;
    if (args.attn_sink) lse += std::log1p(std::exp(args.attn_sink[head] - lse));
    sum += delta_error[row] * lse;
  }
  return sum;
}

/// Largest difference between the backward and central differences of `loss`, over some columns of every row
/// of q and kv, relative to the largest gradient.
double finite_difference_error(BackwardProblem& problem) {
  const SparseMlaBwdArgs args = problem.args();
  const SparseMlaFwdArgs forward = test::forward_args(args);
  std::vector<double> q = test::brute_q(forward), kv = test::brute_kv(forward);

  std::vector<double> delta_error;
  for (int64_t row = 0; row < int64_t(args.b) * args.s_q * args.h_q; ++row) {
    const test::BruteRow result = test::brute_forward(forward, q, kv, row / args.h_q / args.s_q,
                                                      row / args.h_q % args.s_q, row % args.h_q);
    double error = 0;
    for (int d = 0; d < kDimV; ++d) {
      error += (result.out[d] - test::value_of(args.out[row * kDimV + d])) *
               test::value_of(args.d_out[row * kDimV + d]);
    }
    delta_error.push_back(error);
  }

  const reference::Matrix dkv = reference::sparse_mla_bwd_dkv(args);
  double worst = 0, largest = 0;
  const auto compare = [&](double& x, double got) {
    const double step = 1e-4, at = x;
    x = at + step;
    const double above = loss(args, q, kv, delta_error);
    x = at - step;
    const double below = loss(args, q, kv, delta_error);
    x = at;
    worst = std::max(worst, std::fabs(got - (above - below) / (2 * step)));
    largest = std::max(largest, std::fabs(got));
  };
  const int columns[] = {0, 100, 511, 512, 575};  // latent and rope
  for (int64_t row = 0; row < int64_t(args.b) * args.s_q; ++row) {
    const reference::QueryGradient got =
        reference::sparse_mla_bwd_query(args, row / args.s_q, row % args.s_q);
    for (int64_t h = 0; h < args.h_q; ++h) {
      for (int d : columns) compare(q[(row * args.h_q + h) * kDimQK + d], got.dq(h, d));
    }
  }
  for (int64_t row = 0; row < dkv.rows(); ++row) {
    for (int d : columns) compare(kv[row * kDimQK + d], dkv(row, d));
  }
  REQUIRE(largest > 0.01);
  return worst / largest;
}

}  // namespace

TEST_CASE("sparse MLA backward: an example by hand") {
  // One head, two rows with equal logits: P = 1/2 each. V differs in column 0 only: 2 and 0, so out[0] = 1.
  // d_out = e0: dP = (2, 0), delta = 1, dS = (1/2, -1/2) * sm_scale.
  ForwardProblem forward(test::Sizes{1, 1, 2, 1, 1, 2}, 1);
  forward.base.sm_scale = 0.25f;
  forward.set_indices({0, 1});
  forward.q.assign(kDimQK, to_bf16(0.0f));
  forward.kv.assign(2 * kDimQK, to_bf16(0.0f));
  forward.q[575] = to_bf16(1.0f);
  forward.kv[0] = to_bf16(2.0f);
  forward.kv[575] = forward.kv[kDimQK + 575] = to_bf16(8.0f);  // logit 8 / 4 = 2 for both
  BackwardProblem problem(forward, 1);
  problem.d_out.assign(kDimV, to_bf16(0.0f));
  problem.d_out[0] = to_bf16(1.0f);
  problem.forward.out.assign(kDimV, to_bf16(0.0f));
  problem.forward.out[0] = to_bf16(1.0f);
  problem.forward.lse = {2.0f + std::log(2.0f)};
  const reference::QueryGradient got = reference::sparse_mla_bwd_query(problem.args(), 0, 0);
  const reference::Matrix dkv = reference::sparse_mla_bwd_dkv(problem.args());
  CHECK(got.delta[0] == 1.0);
  CHECK(got.dq(0, 0) == doctest::Approx(0.125 * 2).epsilon(1e-6));  // dS0 * 2
  CHECK(std::fabs(got.dq(0, 575)) < 1e-6);                          // (dS0 + dS1) * 8
  CHECK(dkv(0, 575) == doctest::Approx(0.125).epsilon(1e-6));       // as a key: dS0 * q
  CHECK(dkv(1, 575) == doctest::Approx(-0.125).epsilon(1e-6));
  CHECK(dkv(0, 0) == doctest::Approx(0.5).epsilon(1e-6));  // as a value: P * d_out
  CHECK(dkv(1, 0) == doctest::Approx(0.5).epsilon(1e-6));
}

TEST_CASE("sparse MLA backward: every feature against plain loops") {
  for (int seed = 0; seed < 16; ++seed) {
    CAPTURE(seed);
    test::Random random(200 + seed);
    test::Sizes sizes;
    sizes.b = random.integer(1, 2);
    sizes.s_q = random.integer(1, 4);
    sizes.s_kv = random.integer(1, 12);
    sizes.g = random.integer(1, 2);
    sizes.h_q = sizes.g * random.integer(1, 3);
    sizes.topk = random.integer(0, 14);
    ForwardProblem forward(sizes, seed);
    forward.base.causal = seed % 3 == 1;
    forward.base.q_start = random.integer(0, 8);
    forward.base.kv_stride = random.integer(1, 2);
    if (seed % 4 >= 2) {
      for (int i = 0; i < sizes.b * sizes.s_q; ++i)
        forward.topk_length.push_back(random.integer(-2, sizes.topk + 2));
    }
    if (seed % 5 >= 2) forward.attn_sink = random.floats(sizes.h_q, 3.0f);
    BackwardProblem problem = backward_of(forward, seed);
    CHECK(brute_error(problem) < 1e-11);
  }
}

TEST_CASE("sparse MLA backward: finite differences") {
  for (int seed = 0; seed < 6; ++seed) {
    CAPTURE(seed);
    test::Sizes sizes;
    sizes.b = seed % 2 + 1;
    sizes.s_q = 3;
    sizes.s_kv = 5;
    sizes.g = seed >= 2 ? 2 : 1;
    sizes.h_q = 2;
    sizes.topk = 7;  // more than s_kv: duplicates
    ForwardProblem forward(sizes, 50 + seed);
    if (seed >= 1) forward.attn_sink = {0.7f, -0.4f};
    if (seed >= 3) {
      forward.base.causal = true;
      forward.base.q_start = 2;
    }
    if (seed == 4) forward.topk_length = {7, 4, 6};
    if (seed == 5) forward.topk_length = {7, 5, 0, 6, 7, 7};
    BackwardProblem problem = backward_of(forward, seed);
    CHECK(finite_difference_error(problem) < 2e-6);
  }
}

TEST_CASE("sparse MLA backward: the whole problem is the parts, rounded") {
  test::Sizes sizes;
  sizes.b = 2;
  sizes.g = 2;
  ForwardProblem forward(sizes, 20);
  forward.topk_length = {16, 0, 5, 16, 1, 100};
  BackwardProblem problem = backward_of(forward, 20);
  SparseMlaBwdArgs args = problem.args();
  reference::sparse_mla_bwd(args);
  const reference::Matrix dkv = reference::sparse_mla_bwd_dkv(args);
  int wrong = 0;
  for (int64_t i = 0; i < dkv.size(); ++i) {
    if (problem.dkv_f32[i] != float(dkv.data()[i])) ++wrong;
    if (problem.dkv[i].bits != to_bf16(problem.dkv_f32[i]).bits) ++wrong;
  }
  for (int64_t row = 0; row < args.b * args.s_q * args.h_q; ++row) {
    const int64_t h = row % args.h_q;
    const auto got =
        reference::sparse_mla_bwd_query(args, row / args.h_q / args.s_q, row / args.h_q % args.s_q);
    if (problem.delta[row] != float(got.delta[h])) ++wrong;
    for (int d = 0; d < kDimQK; ++d) {
      if (problem.dq[row * kDimQK + d].bits != to_bf16(float(got.dq(h, d))).bits) ++wrong;
    }
  }
  CHECK(wrong == 0);

  // Outputs that nobody asked for.
  const std::vector<float> dkv_f32 = problem.dkv_f32;
  problem.dkv_f32.assign(problem.dkv_f32.size(), kInf);
  args = problem.args();
  args.dq = nullptr;
  args.dkv = nullptr;
  args.delta = nullptr;
  reference::sparse_mla_bwd(args);
  CHECK(problem.dkv_f32 == dkv_f32);
  args.dkv_f32 = nullptr;
  reference::sparse_mla_bwd(args);
}

TEST_CASE("B-02: empty queries contribute exactly nothing") {
  test::Sizes sizes;
  sizes.s_q = 5;
  ForwardProblem forward(sizes, 21);
  for (int query : {0, 2, 4}) {
    for (int slot = 0; slot < sizes.topk; ++slot) forward.indices[query * sizes.topk + slot] = -1;
  }
  BackwardProblem problem = backward_of(forward, 21);
  const reference::Matrix dkv = reference::sparse_mla_bwd_dkv(problem.args());
  for (int query : {0, 2, 4}) {
    CHECK(problem.forward.lse[query * sizes.h_q] == kInf);
    CHECK(reference::sparse_mla_bwd_query(problem.args(), 0, query).dq.isZero(0));
  }
  CHECK(brute_error(problem) < 1e-11);

  // Whatever their other tensors hold, and even if their indices are valid: lse = +inf decides.
  for (int query : {0, 2, 4}) {
    for (int slot = 0; slot < sizes.topk; ++slot) problem.forward.indices[query * sizes.topk + slot] = slot;
    const int64_t first = int64_t(query) * sizes.h_q;
    for (int64_t i = first * kDimV; i < (first + sizes.h_q) * kDimV; ++i) problem.d_out[i].bits = 0x7fc0;
    for (int64_t i = first * kDimQK; i < (first + sizes.h_q) * kDimQK; ++i)
      problem.forward.q[i].bits = 0x7f80;
  }
  CHECK(reference::sparse_mla_bwd_dkv(problem.args()) == dkv);
  for (int query : {0, 2, 4}) CHECK(reference::sparse_mla_bwd_query(problem.args(), 0, query).dq.isZero(0));
  for (int row = 0; row < sizes.s_kv; ++row) {
    CHECK(
        (reference::sparse_mla_bwd_dkv_row(problem.args(), 0, row, 0) - dkv.row(row)).cwiseAbs().maxCoeff() <
        1e-12);
  }
}

TEST_CASE("B-02: one empty head among others") {
  BackwardProblem problem = backward_of(ForwardProblem(test::Sizes{}, 22), 22);
  problem.forward.lse[2] = kInf;
  const reference::QueryGradient got = reference::sparse_mla_bwd_query(problem.args(), 0, 0);
  for (int h = 0; h < 4; ++h) CHECK(got.dq.row(h).isZero(0) == (h == 2));
  CHECK(brute_error(problem) < 1e-11);
}

TEST_CASE("a KV row that nobody selected gets exactly 0, also if it holds NaN") {
  ForwardProblem forward(test::Sizes{}, 23);
  for (int32_t& row : forward.indices) row = row == 5 ? 6 : row;
  for (int d = 0; d < kDimQK; ++d) forward.kv[5 * kDimQK + d] = to_bf16(0.0f);
  BackwardProblem problem = backward_of(forward, 23);
  const reference::Matrix want = reference::sparse_mla_bwd_dkv(problem.args());
  for (int d = 0; d < kDimQK; ++d) problem.forward.kv[5 * kDimQK + d].bits = 0x7fc0;
  CHECK(want.row(5).isZero(0));
  CHECK(reference::sparse_mla_bwd_dkv(problem.args()) == want);
  CHECK(reference::sparse_mla_bwd_dkv_row(problem.args(), 0, 5, 0).isZero(0));
}

TEST_CASE("invalid slots contribute nothing to any gradient") {
  ForwardProblem forward(test::Sizes{}, 24);
  for (int32_t& row : forward.indices) row = std::abs(row) % 40;
  ForwardProblem padded = forward;
  std::vector<int32_t> mixed;
  const std::vector<int32_t> invalid = test::invalid_rows(40);
  for (std::size_t slot = 0; slot < forward.indices.size(); ++slot) {
    mixed.push_back(forward.indices[slot]);
    mixed.push_back(invalid[slot % invalid.size()]);
  }
  padded.set_indices(mixed);
  BackwardProblem want = backward_of(forward, 24), got = backward_of(padded, 24);
  CHECK(reference::sparse_mla_bwd_dkv(got.args()) == reference::sparse_mla_bwd_dkv(want.args()));
  for (int query = 0; query < 3; ++query) {
    CHECK(reference::sparse_mla_bwd_query(got.args(), 0, query).dq ==
          reference::sparse_mla_bwd_query(want.args(), 0, query).dq);
  }
}

TEST_CASE("backward: the causal bound is the forward's, with q_start and kv_stride") {
  ForwardProblem forward(test::Sizes{1, 9, 6, 2, 1, 6}, 28);
  for (std::size_t slot = 0; slot < forward.indices.size(); ++slot) forward.indices[slot] = int(slot % 6);
  forward.base.causal = true;
  forward.base.q_start = 5;
  forward.base.kv_stride = 3;
  BackwardProblem problem = backward_of(forward, 28);
  CHECK(brute_error(problem) < 1e-11);
  // Row r is seen from position 3r + 2 on; the last query is at position 13, so rows 4 and 5 are never seen.
  const reference::Matrix dkv = reference::sparse_mla_bwd_dkv(problem.args());
  for (int row = 0; row < 6; ++row) CHECK(dkv.row(row).isZero(0) == (row >= 4));
}

TEST_CASE("B-06: many queries select the same rows") {
  for (const bool shared : {true, false}) {
    test::Sizes sizes;
    sizes.s_q = 32;
    sizes.h_q = 2;
    sizes.topk = 4;
    sizes.s_kv = 128;
    ForwardProblem forward(sizes, 25);
    for (std::size_t slot = 0; slot < forward.indices.size(); ++slot) {
      forward.indices[slot] =
          int(shared ? slot % 4 : slot);  // the same 4 rows, or 4 of its own for each query
    }
    BackwardProblem problem = backward_of(forward, 25);
    CHECK(brute_error(problem) < 1e-11);
  }
}

TEST_CASE("B-12: the row is key and value at once") {
  ForwardProblem forward(test::Sizes{}, 26);
  SUBCASE("(a) d_out = 0: no gradient at all") {
    BackwardProblem problem = backward_of(forward, 26);
    for (bf16& x : problem.d_out) x = to_bf16(0.0f);
    CHECK(reference::sparse_mla_bwd_dkv(problem.args()).isZero(0));
    CHECK(reference::sparse_mla_bwd_query(problem.args(), 0, 1).dq.isZero(0));
  }
  SUBCASE("(b) one-hot softmax: only the value's share is left") {
    forward = ForwardProblem(test::Sizes{1, 1, 8, 3, 1, 8}, 26);
    forward.set_indices({0, 1, 2, 3, 4, 5, 6, 7});
    forward.base.sm_scale = 1.0f;
    for (bf16& x : forward.q) x = to_bf16(0.0f);
    for (int h = 0; h < 3; ++h) forward.q[h * kDimQK + 520] = to_bf16(1.0f);
    for (int row = 0; row < 8; ++row) forward.kv[row * kDimQK + 520] = to_bf16(row == 3 ? 80.0f : 0.0f);
    BackwardProblem problem = backward_of(forward, 26);
    const reference::Matrix dkv = reference::sparse_mla_bwd_dkv(problem.args());
    for (int d = 0; d < kDimV; ++d) {
      double sum = 0;
      for (int h = 0; h < 3; ++h) sum += test::value_of(problem.d_out[h * kDimV + d]);
      CHECK(std::fabs(dkv(3, d) - sum) < 1e-5);
    }
    // q is 0 in the latent columns, and dS is 0 up to the rounding of `out`, so the rope columns stay near 0.
    for (int d = kDimV; d < kDimQK; ++d) CHECK(std::fabs(dkv(3, d)) < 1e-12 + (d == 520 ? 1e-3 : 0.0));
    for (int row : {0, 7}) CHECK(dkv.row(row).cwiseAbs().maxCoeff() < 1e-25);
  }
  SUBCASE("(c) in general: latent and rope columns judged on their own") {
    BackwardProblem problem = backward_of(forward, 26);
    const reference::Matrix dkv = reference::sparse_mla_bwd_dkv(problem.args());
    const test::BruteGradient want = test::brute_backward(problem.args());
    double latent = 0, rope = 0;
    for (int64_t row = 0; row < dkv.rows(); ++row) {
      for (int d = 0; d < kDimQK; ++d) {
        double& worst = d < kDimV ? latent : rope;
        worst = std::max(worst, std::fabs(dkv(row, d) - want.dkv[row * kDimQK + d]));
      }
    }
    CHECK(dkv.leftCols(kDimV).norm() > 1);
    CHECK(dkv.rightCols(kDimRope).norm() > 0.1);
    CHECK(latent < 1e-12);
    CHECK(rope < 1e-12);
  }
}

TEST_CASE("backward with a sink: infinities") {
  BackwardProblem problem = backward_of(ForwardProblem(test::Sizes{}, 27), 27);
  const reference::Matrix plain = reference::sparse_mla_bwd_dkv(problem.args());
  problem.forward.attn_sink.assign(4, -kInf);
  CHECK(reference::sparse_mla_bwd_dkv(problem.args()) == plain);
  for (const float sink : {kInf, 2e38f, 2.4e38f}) {
    problem.forward.attn_sink.assign(4, sink);
    CHECK(reference::sparse_mla_bwd_dkv(problem.args()).isZero(0));
    CHECK(reference::sparse_mla_bwd_query(problem.args(), 0, 0).dq.isZero(0));
  }
}

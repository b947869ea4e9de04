// Sparse MLA forward, split and merge, and the dense attention it is derived from.
#include "reference/sparse_mla_fwd.hpp"

#include <doctest/doctest.h>

#include <climits>
#include <cmath>
#include <cstring>
#include <limits>

#include "brute_force.hpp"
#include "problems.hpp"
#include "reference/dense_mla.hpp"
#include "reference/selected.hpp"

using namespace dsa;
using reference::Attention;
using test::ForwardProblem;

namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

double worst_error(const Attention& got, const Attention& want) {
  double worst = test::worst_error(got.out.data(),
                                   std::vector<double>(want.out.data(), want.out.data() + want.out.size()));
  for (int64_t h = 0; h < want.lse.size(); ++h) {
    worst = std::max(worst, test::worst_error(&got.lse[h], {want.lse[h]}));
    worst = std::max(worst, test::worst_error(&got.max_logits[h], {want.max_logits[h]}));
  }
  return worst;
}

/// One query against the plain loops.
double brute_error(const SparseMlaFwdArgs& args, int64_t batch, int64_t query, const Attention& got) {
  const std::vector<double> q = test::brute_q(args), kv = test::brute_kv(args);
  double worst = 0;
  for (int64_t h = 0; h < args.h_q; ++h) {
    const test::BruteRow want = test::brute_forward(args, q, kv, batch, query, h);
    worst = std::max(worst, test::worst_error(got.out.data() + h * kDimV, want.out));
    worst = std::max(worst, test::worst_error(&got.lse[h], {want.lse}));
    worst = std::max(worst, test::worst_error(&got.max_logits[h], {want.max_logit}));
  }
  return worst;
}

double brute_error(ForwardProblem& problem) {
  const SparseMlaFwdArgs args = problem.args();
  double worst = 0;
  for (int batch = 0; batch < args.b; ++batch) {
    for (int query = 0; query < args.s_q; ++query) {
      const Attention got = reference::sparse_mla_fwd_query(args, batch, query);
      worst = std::max(worst, brute_error(args, batch, query, got));
    }
  }
  return worst;
}

/// Final attention of query 0 after the problem's tensors were changed.
Attention run(ForwardProblem& problem, int64_t batch = 0, int64_t query = 0) {
  return reference::sparse_mla_fwd_query(problem.args(), batch, query);
}

bool is_empty(const Attention& got) {
  return got.out.isZero(0) && (got.lse.array() == double(kInf)).all() &&
         (got.max_logits.array() == -double(kInf)).all();
}

/// A problem whose q is e0 in every head, so that logit = kv[row, 0] * sm_scale, with sm_scale 1.
ForwardProblem one_dimensional(int s_q, const std::vector<float>& logits) {
  test::Sizes sizes;
  sizes.s_q = s_q;
  sizes.s_kv = int(logits.size());
  sizes.h_q = 1;
  sizes.topk = int(logits.size());
  ForwardProblem problem(sizes, 1);
  problem.base.sm_scale = 1.0f;
  for (std::size_t i = 0; i < problem.q.size(); ++i) problem.q[i] = to_bf16(i % kDimQK == 0 ? 1.0f : 0.0f);
  for (std::size_t j = 0; j < logits.size(); ++j) problem.kv[j * kDimQK] = to_bf16(logits[j]);
  for (std::size_t slot = 0; slot < problem.indices.size(); ++slot)
    problem.indices[slot] = int(slot % logits.size());
  return problem;
}

}  // namespace

TEST_CASE("sparse MLA forward: an example by hand") {
  // Logits 0 and log 3 (as near as bf16 gets): weights 1/4 and 3/4.
  ForwardProblem problem = one_dimensional(1, {0.0f, 1.1015625f});
  for (int d = 1; d < kDimV; ++d) {
    problem.kv[d] = to_bf16(4.0f);
    problem.kv[kDimQK + d] = to_bf16(-8.0f);
  }
  const Attention got = run(problem);
  const double e = std::exp(1.1015625);
  CHECK(got.lse[0] == doctest::Approx(std::log(1 + e)).epsilon(1e-14));
  CHECK(got.max_logits[0] == 1.1015625);
  CHECK(got.out(0, 0) == doctest::Approx(1.1015625 * e / (1 + e)).epsilon(1e-14));
  CHECK(got.out(0, 1) == doctest::Approx((4 - 8 * e) / (1 + e)).epsilon(1e-14));
  CHECK(got.out(0, 511) == doctest::Approx((4 - 8 * e) / (1 + e)).epsilon(1e-14));
  CHECK(std::fabs(got.out(0, 1) + 5.0) < 0.01);
}

TEST_CASE("sparse MLA forward: every feature against plain loops") {
  for (int seed = 0; seed < 24; ++seed) {
    CAPTURE(seed);
    test::Random random(100 + seed);
    test::Sizes sizes;
    sizes.b = random.integer(1, 3);
    sizes.s_q = random.integer(1, 4);
    sizes.s_kv = random.integer(1, 30);
    sizes.g = random.integer(1, 3);
    sizes.h_q = sizes.g * random.integer(1, 3);
    sizes.topk = random.integer(0, 20);
    ForwardProblem problem(sizes, seed);
    if (seed % 2) problem.make_fp8(seed);
    problem.base.causal = seed % 3 == 1;
    problem.base.q_start = random.integer(0, 20);
    problem.base.kv_stride = random.integer(1, 4);
    if (seed % 4 >= 2) {
      for (int i = 0; i < sizes.b * sizes.s_q; ++i)
        problem.topk_length.push_back(random.integer(-3, sizes.topk + 3));
    }
    if (seed % 5 >= 2) problem.attn_sink = random.floats(sizes.h_q, 3.0f);
    if (seed % 8 == 7) problem.q_scale.clear();
    if (seed % 8 == 5) problem.kv_scale.clear();
    CHECK(brute_error(problem) < 1e-11);
  }
}

TEST_CASE("sparse MLA forward: the whole problem is the queries, rounded") {
  test::Sizes sizes;
  sizes.b = 2;
  sizes.g = 2;
  ForwardProblem problem(sizes, 7);
  problem.topk_length = {16, 0, 5, 16, 1, 100};
  const SparseMlaFwdArgs args = problem.args();
  reference::sparse_mla_fwd(args);
  int wrong = 0;
  for (int64_t row = 0; row < args.b * args.s_q * args.h_q; ++row) {
    const int64_t h = row % args.h_q;
    const Attention want = run(problem, row / args.h_q / args.s_q, row / args.h_q % args.s_q);
    for (int d = 0; d < kDimV; ++d) {
      if (problem.out[row * kDimV + d].bits != to_bf16(float(want.out(h, d))).bits) ++wrong;
    }
    if (problem.lse[row] != float(want.lse[h])) ++wrong;
    if (problem.max_logits[row] != float(want.max_logits[h])) ++wrong;
  }
  CHECK(wrong == 0);
}

TEST_CASE("F-01: invalid indices are never dereferenced") {
  test::Sizes sizes;
  sizes.s_kv = 12;
  ForwardProblem problem(sizes, 3);
  const std::vector<int32_t> invalid = test::invalid_rows(sizes.s_kv);
  std::vector<int32_t> mixed, valid;
  for (int query = 0; query < sizes.s_q; ++query) {
    for (std::size_t j = 0; j < invalid.size(); ++j) {
      mixed.push_back(invalid[j]);
      mixed.push_back(int(3 * j + query) % sizes.s_kv);
      valid.push_back(mixed.back());
    }
  }
  problem.set_indices(valid);
  std::vector<Attention> want;
  for (int query = 0; query < sizes.s_q; ++query) want.push_back(run(problem, 0, query));

  problem.set_indices(mixed);
  // KV in the middle of an arena of NaN: reading beside it shows.
  const std::size_t rows = 64;
  std::vector<bf16> arena((2 * rows + sizes.s_kv) * kDimQK, bf16{0x7fff});
  std::memcpy(&arena[rows * kDimQK], problem.kv.data(), problem.kv.size() * sizeof(bf16));
  SparseMlaFwdArgs args = problem.args();
  args.kv = &arena[rows * kDimQK];
  for (const bool causal : {false, true}) {
    args.causal = causal;  // all rows are visible: -1 must not pass because it is small
    args.q_start = 1000;
    for (int query = 0; query < sizes.s_q; ++query) {
      CHECK(worst_error(reference::sparse_mla_fwd_query(args, 0, query), want[query]) == 0);
    }
  }
}

TEST_CASE("NaN in rows that nobody selected reaches no output") {
  ForwardProblem problem(test::Sizes{}, 4);
  for (int32_t& row : problem.indices) row = row == 5 ? 6 : row;
  const Attention want = run(problem);
  for (int d = 0; d < kDimQK; ++d) problem.kv[5 * kDimQK + d] = bf16{0x7fc0};
  CHECK(worst_error(run(problem), want) == 0);
}

TEST_CASE("F-03: a query without a valid slot") {
  test::Sizes sizes;
  sizes.s_q = 5;
  ForwardProblem problem(sizes, 5);
  std::vector<Attention> before;
  for (int query = 0; query < 5; ++query) before.push_back(run(problem, 0, query));
  for (int query : {0, 2, 4}) {
    const std::vector<int32_t> invalid = test::invalid_rows(sizes.s_kv);
    for (int slot = 0; slot < sizes.topk; ++slot) {
      problem.indices[query * sizes.topk + slot] = invalid[slot % invalid.size()];
    }
  }
  for (const float sink : {-kInf, 0.0f, kInf, 2e38f}) {
    problem.attn_sink.assign(sizes.h_q, sink);
    for (int query : {0, 2, 4}) CHECK(is_empty(run(problem, 0, query)));
  }
  problem.attn_sink.clear();
  for (int query : {0, 2, 4}) CHECK(is_empty(run(problem, 0, query)));
  for (int query : {1, 3}) CHECK(worst_error(run(problem, 0, query), before[query]) == 0);

  // Empty for the other reasons: no slots, no KV rows, nothing visible, length 0.
  problem.topk_length.assign(5, 0);
  CHECK(is_empty(run(problem, 0, 1)));
  problem.topk_length.assign(5, INT_MIN);
  CHECK(is_empty(run(problem, 0, 1)));
  problem.topk_length.clear();
  problem.base.causal = true;
  problem.base.kv_stride = 7;
  CHECK(is_empty(run(problem, 0, 1)));
  ForwardProblem none(test::Sizes{1, 1, 0, 2, 1, 4}, 1);
  CHECK(is_empty(run(none)));
  ForwardProblem no_slots(test::Sizes{1, 1, 3, 2, 1, 0}, 1);
  CHECK(is_empty(run(no_slots)));

  // As stored.
  reference::sparse_mla_fwd(none.args());
  CHECK(none.out[511].bits == 0);
  CHECK(none.lse[1] == kInf);
  CHECK(none.max_logits[1] == -kInf);
}

TEST_CASE("topk_length: slots from there on do not count, and it is clamped to [0, topk]") {
  test::Sizes sizes;
  ForwardProblem problem(sizes, 6);
  for (int32_t& row : problem.indices) row = std::abs(row) % sizes.s_kv;
  const Attention all = run(problem);
  for (const int length : {sizes.topk, sizes.topk + 1, 1000000, INT_MAX}) {
    problem.topk_length.assign(sizes.s_q, length);
    CHECK(worst_error(run(problem), all) == 0);
  }
  for (const int length : {1, 5, 15}) {
    problem.topk_length.assign(sizes.s_q, length);
    const Attention got = run(problem);
    problem.topk_length.clear();
    ForwardProblem cut = problem;
    for (int query = 0; query < sizes.s_q; ++query) {
      for (int slot = length; slot < sizes.topk; ++slot) cut.indices[query * sizes.topk + slot] = -1;
    }
    CHECK(worst_error(got, run(cut)) == 0);
    CHECK(worst_error(got, all) > 1e-3);
  }
}

TEST_CASE("duplicated indices count with their multiplicity") {
  ForwardProblem problem = one_dimensional(1, {1.0f, 2.0f});
  problem.set_indices({0, 1, 0, 0});
  const Attention got = run(problem);
  CHECK(got.lse[0] == doctest::Approx(std::log(3 * std::exp(1.0) + std::exp(2.0))).epsilon(1e-14));
  CHECK(got.max_logits[0] == 2.0);
}

TEST_CASE("F-05: large negative logits are not mistaken for a mask, and nothing overflows") {
  // A second dimension carries the difference, so that bf16 holds both exactly.
  for (const float base : {-6e4f, -2e9f, 6e4f, 2e9f, 1e4f}) {
    CAPTURE(base);
    ForwardProblem problem = one_dimensional(1, std::vector<float>(8, base));
    const float gap = std::fabs(base) > 1e6f ? 4096.0f : 64.0f;
    problem.q[1] = to_bf16(1.0f);
    for (int j = 0; j < 8; ++j) problem.kv[j * kDimQK + 1] = to_bf16(j == 3 ? gap : 0.0f);
    const Attention got = run(problem);
    const double logit = double(to_float(to_bf16(base))) + gap;
    CHECK(got.max_logits[0] == logit);
    CHECK(got.lse[0] == doctest::Approx(logit).epsilon(1e-15));
    CHECK(got.out(0, 2) == doctest::Approx(test::value_of(problem.kv[3 * kDimQK + 2])).epsilon(1e-12));
    CHECK(brute_error(problem) < 1e-12);
    reference::sparse_mla_fwd(problem.args());
    CHECK(std::isfinite(problem.lse[0]));
  }
}

TEST_CASE("F-06: lse is the natural logarithm of the scaled logits") {
  for (const float c : {-3.0f, 0.0f, 7.0f}) {
    for (const int n : {1, 2, 2048}) {
      ForwardProblem problem = one_dimensional(1, std::vector<float>(n, 2 * c));
      problem.base.sm_scale = 0.5f;
      const Attention got = run(problem);
      CHECK(std::fabs(got.lse[0] - (c + std::log(n))) < 1e-13);
      CHECK(got.max_logits[0] == c);
    }
  }
}

TEST_CASE("F-06: split by slots and merged by lse is the whole") {
  test::Sizes sizes;
  sizes.g = 2;
  for (const bool fp8 : {false, true}) {
    ForwardProblem problem(sizes, 8);
    if (fp8) problem.make_fp8(8);
    problem.topk_length = {16, 9, 0};
    problem.attn_sink = {0.5f, -1.0f, 3.0f, 0.0f};
    const SparseMlaFwdArgs args = problem.args();
    for (int query = 0; query < 3; ++query) {
      for (const int cut : {0, 1, 7, 15, 16}) {
        CAPTURE(cut);
        const Attention a = reference::sparse_mla_fwd_slots(args, 0, query, 0, cut);
        const Attention b = reference::sparse_mla_fwd_slots(args, 0, query, cut, args.topk);
        const Attention whole = run(problem, 0, query);
        CHECK(worst_error(reference::finalize(reference::merge(a, b), args.attn_sink), whole) < 1e-13);
        CHECK(worst_error(reference::finalize(reference::merge(b, a), args.attn_sink), whole) < 1e-13);
      }
      // One partial per slot.
      Attention sum = Attention::empty(args.h_q);
      for (int slot = 0; slot < args.topk; ++slot) {
        sum = reference::merge(sum, reference::sparse_mla_fwd_slots(args, 0, query, slot, slot + 1));
      }
      CHECK(worst_error(reference::finalize(sum, args.attn_sink), run(problem, 0, query)) < 1e-13);
    }
  }
}

TEST_CASE("split: a partial of an empty row has lse = -inf and merges as nothing") {
  ForwardProblem problem(test::Sizes{}, 9);
  const SparseMlaFwdArgs args = problem.args();
  const Attention nothing = reference::sparse_mla_fwd_slots(args, 0, 0, 4, 4);
  CHECK(nothing.out.isZero(0));
  CHECK((nothing.lse.array() == -double(kInf)).all());
  CHECK((nothing.max_logits.array() == -double(kInf)).all());
  const Attention part = reference::sparse_mla_fwd_slots(args, 0, 0, 0, args.topk);
  CHECK(worst_error(reference::merge(nothing, part), part) == 0);
  CHECK(worst_error(reference::merge(part, nothing), part) == 0);
  CHECK(worst_error(reference::merge(nothing, nothing), nothing) == 0);
  CHECK(is_empty(reference::finalize(nothing, nullptr)));
}

TEST_CASE("merge: partials far apart") {
  ForwardProblem problem = one_dimensional(1, {-2e9f, 2e9f, 1e4f, 1e4f});
  const SparseMlaFwdArgs args = problem.args();
  for (int cut = 0; cut <= 4; ++cut) {
    const Attention merged = reference::merge(reference::sparse_mla_fwd_slots(args, 0, 0, 0, cut),
                                              reference::sparse_mla_fwd_slots(args, 0, 0, cut, 4));
    CHECK(worst_error(merged, run(problem)) < 1e-14);
  }
}

TEST_CASE("F-07: the causal bound includes the own position and honours q_start") {
  for (const int q_start : {0, 1, 37, 1024}) {
    test::Sizes sizes;
    sizes.s_kv = q_start + 4;
    sizes.topk = 2;
    ForwardProblem problem(sizes, 10);
    problem.base.causal = true;
    problem.base.q_start = q_start;
    for (int query = 0; query < sizes.s_q; ++query) {
      CAPTURE(q_start + query);
      const int own = q_start + query;
      const double* own_values = nullptr;
      const std::vector<double> kv = test::brute_kv(problem.args());
      own_values = &kv[int64_t(own) * kDimQK];
      // {own} alone, {own, own + 1}, {own + 1, own}: the next row is ignored, so the output is the own row.
      for (const auto& slots : {std::vector<int32_t>{own, -1}, {own, own + 1}, {own + 1, own}}) {
        problem.indices[query * 2] = slots[0];
        problem.indices[query * 2 + 1] = slots[1];
        CHECK(test::worst_error(run(problem, 0, query).out.data(),
                                std::vector<double>(own_values, own_values + kDimV)) < 1e-14);
      }
      problem.indices[query * 2] = problem.indices[query * 2 + 1] = own + 1;
      CHECK(is_empty(run(problem, 0, query)));
      problem.base.causal = false;
      CHECK_FALSE(is_empty(run(problem, 0, query)));
      problem.base.causal = true;
    }
  }
}

TEST_CASE("causal bound with one KV row per kv_stride tokens") {
  // Row r stands for tokens 4r .. 4r + 3 and becomes visible with the last of them.
  ForwardProblem problem(test::Sizes{1, 12, 10, 1, 1, 1}, 11);
  problem.base.causal = true;
  problem.base.kv_stride = 4;
  for (const int q_start : {0, 2, 101}) {
    problem.base.q_start = q_start;
    for (int query = 0; query < 12; ++query) {
      for (int row = 0; row < 10; ++row) {
        problem.indices.assign(12, row);
        CHECK(is_empty(run(problem, 0, query)) == (q_start + query < 4 * row + 3));
      }
    }
  }
}

TEST_CASE("F-15: batch elements do not touch each other") {
  test::Sizes sizes;
  sizes.b = 3;
  sizes.g = 2;
  ForwardProblem problem(sizes, 12);
  problem.topk_length = {16, 3, 9, 1, 16, 0, 7, 7, 16};
  for (int batch = 0; batch < 3; ++batch) {
    ForwardProblem single(test::Sizes{1, sizes.s_q, sizes.s_kv, sizes.h_q, sizes.g, sizes.topk}, 1);
    const auto part = [batch](const auto& all) {
      const auto count = std::ptrdiff_t(all.size() / 3);
      return std::decay_t<decltype(all)>(all.begin() + batch * count, all.begin() + (batch + 1) * count);
    };
    single.q = part(problem.q);
    single.kv = part(problem.kv);
    single.indices = part(problem.indices);
    single.topk_length = part(problem.topk_length);
    for (int query = 0; query < sizes.s_q; ++query) {
      CHECK(worst_error(run(problem, batch, query), run(single, 0, query)) == 0);
    }
  }
  const Attention want = run(problem, 0, 0);
  for (std::size_t i = problem.kv.size() / 3; i < problem.kv.size(); ++i) problem.kv[i].bits = 0x7fc0;
  problem.indices[0] = sizes.s_kv;  // in a flat layout this would be row 0 of the next batch element
  ForwardProblem without = problem;
  without.indices[0] = -1;
  CHECK(worst_error(run(problem, 0, 0), run(without, 0, 0)) == 0);
  CHECK(run(problem, 0, 0).out.allFinite());
  CHECK(want.out.allFinite());
}

TEST_CASE("F-24: the sink scales out, and only out") {
  ForwardProblem problem(test::Sizes{}, 13);
  const Attention plain = run(problem);
  const struct {
    float sink;
    bool off;
  } cases[] = {{-kInf, true}, {-2e38f, true}, {kInf, false}, {2e38f, false}, {2.4e38f, false}};
  for (const auto& c : cases) {
    CAPTURE(c.sink);
    problem.attn_sink.assign(4, c.sink);
    const Attention got = run(problem);
    CHECK(got.lse == plain.lse);
    CHECK(got.max_logits == plain.max_logits);
    if (c.off) CHECK(got.out == plain.out);
    if (!c.off) CHECK(got.out.isZero(0));
  }
  // A sink equal to lse takes exactly half; each head has its own.
  problem.attn_sink = {-kInf, float(plain.lse[1]), kInf, float(plain.lse[3] + std::log(3.0))};
  const Attention got = run(problem);
  const double share[] = {1.0, 0.5, 0.0, 0.25};
  for (int h = 0; h < 4; ++h)
    CHECK((got.out.row(h) - share[h] * plain.out.row(h)).cwiseAbs().maxCoeff() < 1e-6);
  CHECK(brute_error(problem) < 1e-12);
}

TEST_CASE("FP8: one scale per query head and per KV row") {
  // Changing one scale must change what it belongs to and nothing else.
  test::Sizes sizes;
  sizes.b = 2;
  sizes.g = 2;
  ForwardProblem problem(sizes, 14);
  problem.make_fp8(14);
  for (int32_t& row : problem.indices) row = row == 7 ? 8 : row;
  const Attention want = run(problem, 1, 2);
  const int64_t head_row = (1 * sizes.s_q + 2) * sizes.h_q;
  problem.q_scale[head_row + 1] *= 1.5f;
  const Attention got = run(problem, 1, 2);
  for (int h = 0; h < 4; ++h) CHECK((got.lse[h] == want.lse[h]) == (h != 1));
  problem.kv_scale[(1 * sizes.s_kv + 7) * sizes.g] = 1e30f;  // of a row nobody selects
  CHECK(worst_error(run(problem, 1, 2), got) == 0);
  CHECK(brute_error(problem) < 1e-11);
}

TEST_CASE("dense MLA is sparse MLA with all visible rows selected") {
  for (const bool fp8 : {false, true}) {
    for (const bool causal : {false, true}) {
      test::Sizes sizes;
      sizes.b = 2;
      sizes.g = 2;
      sizes.s_kv = 23;
      sizes.topk = 23;
      ForwardProblem problem(sizes, 15);
      if (fp8) problem.make_fp8(15);
      problem.base.causal = causal;
      problem.base.q_start = 9;
      problem.attn_sink = {1.0f, 0.0f, -kInf, 2.0f};
      // In descending order: the order of slots is nothing.
      for (std::size_t slot = 0; slot < problem.indices.size(); ++slot)
        problem.indices[slot] = 22 - int(slot % 23);
      for (int batch = 0; batch < 2; ++batch) {
        for (int query = 0; query < sizes.s_q; ++query) {
          const Attention dense = reference::dense_mla_query(problem.args(), batch, query);
          CHECK(worst_error(dense, run(problem, batch, query)) < 1e-13);
          CHECK(brute_error(problem.args(), batch, query, dense) < 1e-12);
        }
      }
    }
  }
  // Nothing visible at all.
  ForwardProblem blind(test::Sizes{}, 16);
  blind.base.causal = true;
  blind.base.kv_stride = 100;
  CHECK(is_empty(reference::dense_mla_query(blind.args(), 0, 2)));
}

TEST_CASE("offsets are formed in 64 bits") {
  // Only the rows that are needed are read, so a virtual tensor of more than 2^31 elements is enough: index
  // the last rows through a base pointer moved back by the distance.
  ForwardProblem problem(test::Sizes{1, 1, 4, 2, 1, 4}, 17);
  problem.set_indices({0, 1, 2, 3});
  const Attention want = run(problem);

  SparseMlaFwdArgs args = problem.args();
  args.s_kv = 5000000;  // * 576 = 2.88e9
  const int64_t shift = 5000000 - 4;
  args.kv =
      reinterpret_cast<const void*>(reinterpret_cast<uintptr_t>(args.kv) - shift * kDimQK * sizeof(bf16));
  std::vector<int32_t> moved;
  for (int row = 0; row < 4; ++row) moved.push_back(int32_t(shift + row));
  args.indices = moved.data();
  CHECK(worst_error(reference::sparse_mla_fwd_query(args, 0, 0), want) == 0);

  args = problem.args();
  const int64_t query = 3000000;  // * 2 heads * 576 = 3.5e9
  args.s_q = int(query + 1);
  args.q =
      reinterpret_cast<const void*>(reinterpret_cast<uintptr_t>(args.q) - query * 2 * kDimQK * sizeof(bf16));
  args.indices = reinterpret_cast<const int32_t*>(reinterpret_cast<uintptr_t>(args.indices) -
                                                  query * 4 * sizeof(int32_t));
  CHECK(worst_error(reference::sparse_mla_fwd_query(args, 0, query), want) == 0);
}

// Work counts against numbers worked out by hand, and when a ratio to a yardstick is an error.
#include <doctest/doctest.h>

#include <algorithm>

#include "bench/work.hpp"

using namespace dsa;
using namespace dsa::bench;
using harness::DType;
using harness::Problem;
using harness::Tensor;

namespace {

Tensor integers(std::vector<int64_t> shape, const std::vector<int32_t>& values) {
  Tensor tensor(DType::kI32, std::move(shape));
  REQUIRE(tensor.elements() == int64_t(values.size()));
  std::copy(values.begin(), values.end(), tensor.data<int32_t>());
  return tensor;
}

/// b = 1, s_q = 2, s_kv = 10, h_q = 4, topk = 3.
Problem forward_problem(std::vector<int32_t> indices) {
  SparseMlaFwdArgs args;
  args.s_q = 2, args.s_kv = 10, args.h_q = 4, args.topk = 3, args.sm_scale = 1;
  Problem problem;
  problem.args = args;
  problem.inputs["q"] = Tensor(DType::kBF16, {1, 2, 4, 576});
  problem.inputs["kv"] = Tensor(DType::kBF16, {1, 10, 1, 576});
  problem.inputs["indices"] = integers({1, 2, 1, 3}, indices);
  return problem;
}

}  // namespace

TEST_CASE("forward: 2 b s_q h_q topk (576 + 512), every slot") {
  const Work work = work_of(forward_problem({0, 1, 2, 3, 4, 5}));
  CHECK(work.unit == Unit::kFlop);
  CHECK(work.amount == 2.0 * 2 * 4 * 3 * 1088);  // 52224
  CHECK(work.amount == 52224);
  CHECK(work.valid_amount == 52224);
}

TEST_CASE("forward: invalid slots count in amount and not in valid_amount") {
  SUBCASE("out of range") {
    const Work work = work_of(forward_problem({0, -1, 10, 9, 9, 2147483647}));
    CHECK(work.amount == 52224);
    CHECK(work.valid_amount == 2.0 * 4 * 3 * 1088);  // rows 0, 9, 9: a repeated row counts twice
  }
  SUBCASE("causal") {
    Problem problem = forward_problem({0, 1, 2, 0, 1, 2});
    std::get<SparseMlaFwdArgs>(problem.args).causal = true;
    CHECK(work_of(problem).valid_amount ==
          2.0 * 4 * (1 + 2) * 1088);  // query 0 sees row 0, query 1 rows 0 and 1
  }
  SUBCASE("topk_length") {
    Problem problem = forward_problem({0, 1, 2, 3, 4, 5});
    problem.inputs["topk_length"] = integers({1, 2}, {0, 2});
    CHECK(work_of(problem).valid_amount == 2.0 * 4 * 2 * 1088);
  }
}

TEST_CASE("forward: every head of every group counts its own group's slots") {
  Problem problem = forward_problem({0, 1, 2, 3, 4, 5});
  auto& args = std::get<SparseMlaFwdArgs>(problem.args);
  args.g = 2, args.s_q = 1;  // indices [1, 1, 2, 3]
  problem.inputs["indices"] = integers({1, 1, 2, 3}, {0, 1, 2, -1, -1, 5});
  CHECK(work_of(problem).amount == 2.0 * 1 * 4 * 3 * 1088);
  CHECK(work_of(problem).valid_amount == 2.0 * (2 * 3 + 2 * 1) * 1088);
}

TEST_CASE("backward: 2 b s_q h_q topk (3 * 576 + 2 * 512)") {
  SparseMlaBwdArgs args;
  args.s_q = 2, args.s_kv = 10, args.h_q = 4, args.topk = 3, args.sm_scale = 1, args.causal = true;
  Problem problem{args, {}, {}};
  problem.inputs["indices"] = integers({1, 2, 1, 3}, {0, 1, 2, 0, 1, 2});
  const Work work = work_of(problem);
  CHECK(work.unit == Unit::kFlop);
  CHECK(work.amount == 2.0 * 24 * 2752);  // 132096
  CHECK(work.valid_amount == 2.0 * 4 * 3 * 2752);
}

TEST_CASE("the DeepSeek-V3.2 forward has the FLOP that the literature counts") {
  // 4096 queries, 128 heads, 2048 rows: 2.336 TFLOP, so 665 TFLOP/s take 3.51 ms.
  SparseMlaFwdArgs args;
  args.s_q = 4096, args.s_kv = 1, args.h_q = 128, args.topk = 2048;
  Problem problem{args, {}, {}};
  problem.inputs["indices"] = Tensor(DType::kI32, {1, 4096, 1, 2048});
  CHECK(work_of(problem).amount == doctest::Approx(2.3364e12).epsilon(1e-4));
}

TEST_CASE("indexer: only pairs inside the clamped windows") {
  IndexerArgs args;
  args.s_q = 4, args.s_kv = 100, args.h_i = 64, args.d_i = 128, args.logits_stride = 128;
  Problem problem{args, {}, {}};
  problem.inputs["ks"] = integers({4}, {0, 10, 60, -5});
  problem.inputs["ke"] = integers({4}, {1, 40, 50, 1000});  // 1, 30, none (ke < ks), 100 columns
  const Work work = work_of(problem);
  CHECK(work.unit == Unit::kFlop);
  CHECK(work.amount == 2.0 * 64 * 128 * 131);
}

TEST_CASE("topk: four bytes per column of a window") {
  TopkArgs args;
  args.rows = 3, args.n = 50, args.topk = 8, args.logits_stride = 64;
  Problem problem{args, {}, {}};
  problem.inputs["ks"] = integers({3}, {0, 7, 9});
  problem.inputs["ke"] = integers({3}, {50, 7, 10});
  const Work work = work_of(problem);
  CHECK(work.unit == Unit::kBytes);
  CHECK(work.amount == 4 * 51);
}

TEST_CASE("quantize: input, bytes and scales") {
  QuantizeArgs args;
  args.rows = 10, args.n = 128;
  Problem problem{args, {}, {}};
  SUBCASE("bf16") {
    problem.inputs["x"] = Tensor(DType::kBF16, {10, 128});
    CHECK(work_of(problem).amount == 10 * (256 + 128 + 4));
  }
  SUBCASE("float32") {
    problem.inputs["x"] = Tensor(DType::kF32, {10, 128});
    CHECK(work_of(problem).amount == 10 * (512 + 128 + 4));
  }
  CHECK(work_of(problem).unit == Unit::kBytes);
}

TEST_CASE("tensor_bytes: every tensor once, absent optional ones not") {
  TopkArgs args;
  args.rows = 3, args.n = 50, args.topk = 8, args.logits_stride = 64;
  Problem problem{args, {}, {}};
  problem.inputs["logits"] = Tensor(DType::kF32, {3, 50});
  problem.inputs["ks"] = problem.inputs["ke"] = Tensor(DType::kI32, {3});
  CHECK(tensor_bytes(problem) == 4 * (3 * 64 + 3 + 3 + 3 * 8));
}

TEST_CASE("a ratio above a ceiling is an error, and only there") {
  SparseMlaFwdArgs bf16, fp8;
  fp8.fp8 = true;
  const Work all{Unit::kFlop, 10, 10}, half{Unit::kFlop, 10, 5};
  CHECK(yardstick_for(bf16, false).kind == YardstickKind::kCublasBf16);
  CHECK(above_ceiling(yardstick_for(bf16, false), 0.999, all).empty());
  CHECK(above_ceiling(yardstick_for(bf16, false), 1.0, all).empty());
  CHECK_FALSE(above_ceiling(yardstick_for(bf16, false), 1.001, all).empty());
  CHECK(above_ceiling(yardstick_for(bf16, false), 1.9, half).empty());   // a kernel may skip what is not valid
  CHECK_FALSE(above_ceiling(yardstick_for(bf16, false), 2.1, half).empty());
  CHECK(above_ceiling(yardstick_for(fp8, false), 1.29, all).empty());
  CHECK_FALSE(above_ceiling(yardstick_for(SparseMlaBwdArgs{}, false), 1.01, all).empty());
  CHECK_FALSE(above_ceiling(yardstick_for(IndexerArgs{}, false), 1.01, all).empty());
  CHECK_FALSE(above_ceiling(yardstick_for(TopkArgs{}, false), 1.01, all).empty());
  CHECK(above_ceiling(yardstick_for(TopkArgs{}, true), 1.8, all)
            .empty());  // warm: the cache is faster than the copy
}

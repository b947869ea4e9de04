// Judging whole outputs: honest variants pass, dishonest ones do not.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "cuda/harness/golden.hpp"
#include "host_machine.hpp"

using namespace dsa;
using namespace dsa::harness;
using test::bad_input;
using test::contains;

namespace {

/// Row 0: 12 distinct columns, then ties at 0. Row 1: 3 selectable columns. Row 2: a window in the middle.
struct Topk {
  Problem problem;
  Tensor indices;

  explicit Topk(bool deterministic = false) {
    TopkArgs args;
    args.rows = 3;
    args.n = args.logits_stride = 40;
    args.topk = 16;
    args.deterministic = deterministic;
    problem.args = args;
    std::vector<float> logits(120);
    for (int j = 0; j < 40; ++j) {
      logits[std::size_t(j)] = j % 3 == 0 && j < 36 ? float(j + 1) : 0.f;
      logits[std::size_t(40 + j)] = j < 3 ? 1.f : -INFINITY;
      logits[std::size_t(80 + j)] = float(j * 7 % 40);
    }
    problem.inputs["logits"] = generate::floats({3, 40}, logits);
    problem.inputs["ks"] = generate::integers({3}, {0, 0, 10});
    problem.inputs["ke"] = generate::integers({3}, {40, 40, 35});
    indices = run_reference(problem).at("indices");
  }
  int32_t* row(int64_t i) { return indices.data<int32_t>() + 16 * i; }
  Verdict judge() const {
    const Judge judge(problem);
    return judge.judge({{"indices", indices}}, Accuracy::kExact);
  }
};

/// The smallest zero column of row 0 that is not selected: the other member of the tie.
int32_t other_member(const int32_t* row) {
  for (int32_t j = 1;; ++j) {
    if (j % 3 != 0 && std::find(row, row + 16, j) == row + 16) return j;
  }
}

std::string golden(const char* name) {
  return std::string(DSA_SOURCE_DIR) + "/tests/golden/" + name + ".safetensors";
}

}  // namespace

TEST_CASE("judge: top-k accepts any order and any member of a tie") {
  Topk topk;
  CHECK(topk.judge().passed);
  std::reverse(topk.row(0), topk.row(0) + 16);
  std::reverse(topk.row(1), topk.row(1) + 3);
  CHECK(topk.judge().passed);
  *std::find_if(topk.row(0), topk.row(0) + 16, [](int32_t j) { return j % 3 != 0; }) =
      other_member(topk.row(0));
  CHECK(topk.judge().passed);
}

TEST_CASE("judge: top-k refuses what is not the selection") {
  Topk topk;
  SUBCASE("a duplicate on the plateau") {
    int32_t* zero = std::find_if(topk.row(0), topk.row(0) + 16, [](int32_t j) { return j % 3 != 0; });
    zero[0] = zero[1];
    CHECK(contains(topk.judge().message, "was selected before, in slot"));
  }
  SUBCASE("a column outside the window") {
    topk.row(2)[4] = 36;
    CHECK(contains(topk.judge().message, "indices[row 2, slot 4] = 36 is outside the window [10, 35)"));
  }
  SUBCASE("a column outside the tensor") {
    topk.row(0)[15] = 40;
    CHECK(contains(topk.judge().message, "is outside the window"));
  }
  SUBCASE("-1 too early") {
    topk.row(0)[15] = -1;
    CHECK(contains(topk.judge().message, "but 16 columns are selectable"));
  }
  SUBCASE("no -1 at the end") {
    topk.row(1)[3] = 7;
    CHECK(contains(topk.judge().message, "expected -1: only 3 columns are selectable"));
  }
  SUBCASE("poison left behind") {
    topk.row(1)[15] = 0x7f7f7f7f;
    CHECK(contains(topk.judge().message, "indices[row 1, slot 15] = 2139062143, expected -1"));
  }
  SUBCASE("-1 before the columns") {
    std::rotate(topk.row(1), topk.row(1) + 15, topk.row(1) + 16);
    CHECK_FALSE(topk.judge().passed);
  }
  SUBCASE("-inf selected") {
    topk.row(1)[2] = 9;
    CHECK(contains(topk.judge().message, "selects -inf"));
  }
  SUBCASE("the largest value missing") {
    *std::find(topk.row(0), topk.row(0) + 16, 33) = other_member(topk.row(0));
    CHECK(contains(topk.judge().message, "row 0: number 1 of its selected values is 31, should be 34"));
  }
  CHECK_FALSE(topk.judge().passed);
  CHECK(contains(topk.judge().message, "1 of 3 rows are wrong"));
}

TEST_CASE("judge: deterministic top-k has one answer") {
  Topk topk(true);
  CHECK(topk.judge().passed);
  SUBCASE("another order") {
    std::swap(topk.row(0)[0], topk.row(0)[1]);
  }
  SUBCASE("another member of the tie") {
    int32_t* last = std::find_if(topk.row(0), topk.row(0) + 16, [](int32_t j) { return j % 3 != 0; });
    *last = 38;
    std::sort(topk.row(0), topk.row(0) + 16);
  }
  CHECK(contains(topk.judge().message, "the deterministic mode selects"));
}

TEST_CASE("judge: the reference passes its own judgement, fakes of it do not") {
  std::vector<Problem> problems;
  problems.push_back(generate::sparse_fwd({1, 3, 60, 4, 1, 32}));
  problems.push_back(generate::sparse_bwd(problems[0]));
  for (const Problem& problem : problems) {
    const Judge judge(problem);
    const TensorMap honest = run_reference(problem);
    for (const Accuracy accuracy : {Accuracy::kF32, Accuracy::kBf16}) {
      CHECK(judge.judge(honest, accuracy).passed);
      for (const auto& [name, tensor] : honest) {
        CAPTURE(name);
        TensorMap fake = honest;
        Tensor& changed = fake.at(name);
        generate::fill(changed, 0, changed.elements(), 0);
        CHECK_FALSE(judge.judge(fake, accuracy).passed);
        generate::fill(changed, 0, changed.elements(), float(tensor.at(0)));
        CHECK_FALSE(judge.judge(fake, accuracy).passed);
        changed = tensor;
        generate::set(changed, tensor.elements() / 2, NAN);
        CHECK_FALSE(judge.judge(fake, accuracy).passed);
        fake.erase(name);
        CHECK(contains(judge.judge(fake, accuracy).message, "no output '" + name + "'"));
      }
    }
  }
}

TEST_CASE("judge: one bad row among many fails") {
  const Problem problem = generate::sparse_fwd({1, 40, 60, 8, 1, 32});
  const Judge judge(problem);
  TensorMap outputs = run_reference(problem);
  CHECK(judge.judge(outputs, Accuracy::kBf16).passed);
  generate::fill(outputs.at("out"), 211 * 512, 212 * 512, 0);  // 1 of 320
  const Verdict verdict = judge.judge(outputs, Accuracy::kBf16);
  CHECK_FALSE(verdict.passed);
  CHECK(contains(verdict.message, "out[query 26, head 3, "));
}

TEST_CASE("judge: a sample holds the first and the last query") {
  const Problem problem = generate::sparse_fwd({1, 200, 60, 2, 1, 16});
  const Judge judge(problem, 5);
  const TensorMap honest = run_reference(problem);
  CHECK(judge.judge(honest, Accuracy::kF32).passed);
  for (const int64_t query : {0, 199}) {
    TensorMap outputs = honest;
    generate::set(outputs.at("lse"), query * 2 + 1, 77);
    CHECK(contains(judge.judge(outputs, Accuracy::kF32).message,
                   "lse[query " + std::to_string(query) + ", head 1]"));
  }
}

TEST_CASE(
    "judge: a sampled backward looks at rows that were selected, at the last one, and at unselected ones") {
  Problem forward = generate::sparse_fwd({1, 20, 300, 2, 1, 8});
  const Problem problem = generate::sparse_bwd(forward);
  const Judge judge(problem, 8);
  const TensorMap honest = run_reference(problem);
  CHECK(judge.judge(honest, Accuracy::kF32).passed);
  TensorMap outputs = honest;
  generate::set(outputs.at("dkv"), 300 * 576 - 1, 77);
  CHECK_FALSE(judge.judge(outputs, Accuracy::kF32).passed);
  outputs = honest;
  for (const char* name : {"dkv", "dkv_f32"}) generate::fill(outputs.at(name), 0, 300 * 576, 0);
  CHECK_FALSE(judge.judge(outputs, Accuracy::kF32).passed);
}

TEST_CASE("judge: the raw indexer mode is judged inside the window only, the clean mode everywhere") {
  for (const bool clean : {true, false}) {
    IndexerArgs args;
    args.s_q = 2;
    args.s_kv = args.logits_stride = 30;
    args.h_i = 32;
    args.d_i = 64;
    args.clean = clean;
    Problem problem{args, {}};
    problem.inputs["q"] = generate::normal(DType::kE4M3, {2, 32, 64}, 1);
    problem.inputs["k"] = generate::normal(DType::kE4M3, {30, 64}, 2);
    problem.inputs["k_scale"] = generate::uniform({30}, 3, 0.5f, 1);
    problem.inputs["weights"] = generate::normal(DType::kF32, {2, 32}, 4);
    problem.inputs["ks"] = generate::integers({2}, {5, 0});
    problem.inputs["ke"] = generate::integers({2}, {20, 0});
    const Judge judge(problem);
    TensorMap outputs = run_reference(problem);
    CHECK(judge.judge(outputs, Accuracy::kFp8).passed);
    generate::set(outputs.at("logits"), 4, 1e30f);
    CHECK(judge.judge(outputs, Accuracy::kFp8).passed == !clean);
    generate::set(outputs.at("logits"), 5, -INFINITY);
    CHECK(contains(judge.judge(outputs, Accuracy::kFp8).message, "logits[query 0, column 5] got -inf"));
  }
}

TEST_CASE("judge: FP8 rows may be off by 2 percent, special data by their own limit") {
  generate::Sparse sizes{1, 2, 60, 2, 1, 32};
  sizes.fp8 = true;
  Problem problem = generate::sparse_fwd(sizes);
  const Judge judge(problem);
  TensorMap outputs = run_reference(problem);
  Tensor& out = outputs.at("out");
  for (int64_t i = 0; i < 512; ++i) generate::set(out, i, float(out.at(i)) * 1.012f);
  CHECK(judge.judge(outputs, Accuracy::kFp8).passed);
  problem.fp8_row_error = 5e-3;
  CHECK_FALSE(judge.judge(outputs, Accuracy::kFp8).passed);
  problem.fp8_row_error = 2e-2;
  for (int64_t i = 0; i < 512; ++i) generate::set(out, i, float(out.at(i)) * 1.02f);
  CHECK_FALSE(judge.judge(outputs, Accuracy::kFp8).passed);
}

TEST_CASE("golden files: the reference passes each, and a changed expectation fails") {
  int files = 0;
  for (const auto& entry :
       std::filesystem::directory_iterator(std::string(DSA_SOURCE_DIR) + "/tests/golden")) {
    if (entry.path().extension() != ".safetensors") continue;
    ++files;
    CAPTURE(entry.path().string());
    for (const GoldenProblem& golden : read_golden(entry.path(), {}, {})) {
      CAPTURE(golden.part);
      const TensorMap outputs = run_reference(golden.problem);
      const Accuracy accuracy = reference_accuracy(stage_of(golden.problem.args));
      const Verdict verdict = Judge(golden.problem, golden.want, "F").judge(outputs, accuracy);
      CHECK_MESSAGE(verdict.passed, verdict.message);
      for (const auto& [name, tensor] : golden.want) {
        if (name == "want_count") continue;
        CAPTURE(name);
        TensorMap want = golden.want;
        Tensor& changed = want.at(name);
        int64_t at = 0;  // an element that is a number, if there is one
        const auto changeable = [&] {
          return std::fabs(changed.at(at)) > 0.01 && std::isfinite(changed.at(at));
        };
        while (at < changed.elements() && !changeable()) ++at;
        at = at == changed.elements() ? 0 : at;
        generate::set(changed, at, changeable() ? float(changed.at(at)) * 1.3f : 1.f);
        CHECK_FALSE(Judge(golden.problem, want, "F").judge(outputs, accuracy).passed);
      }
    }
  }
  CHECK(files >= 16);
}

TEST_CASE("golden files: the quantisation file holds four problems") {
  const std::vector<GoldenProblem> parts = read_golden(golden("quantize_e4m3"), {}, {});
  REQUIRE(parts.size() == 4);
  CHECK(parts[0].part == "rows, scale=row");
  CHECK(parts[3].part == "decode table");
}

TEST_CASE("golden files: expectations that do not fit the problem are refused") {
  GoldenProblem file = std::move(read_golden(golden("sparse_mla_fwd_basic"), {}, {})[0]);
  TensorMap want = file.want;
  want["want_out"] = Tensor(DType::kF32, {4, 8, 511});
  CHECK(contains(bad_input([&] { Judge(file.problem, want, "F"); }), "F: tensor 'want_out': expected shape"));
  CHECK(contains(bad_input([&] {
                   Judge(file.problem, TensorMap{{"want_x", Tensor()}}, "F");
                 }),
                 "none of its want_"));
}

// The one comparison: NaN-strict, row by row, with coordinates and a map.
#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "cuda/harness/tolerance.hpp"
#include "host_machine.hpp"

using namespace dsa;
using namespace dsa::harness;
using test::contains;

namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

/// 2 queries x 3 heads x 512, values around 1.
struct Fixture {
  Tensor got = generate::normal(DType::kF32, {1, 2, 3, 512}, 1);
  Expected want{"out", {1, 2, 3, 512}, {}, {}, {}};
  Tolerance tolerance;

  Fixture() {
    for (int64_t i = 0; i < got.elements(); ++i) want.values.push_back(got.at(i));
    tolerance.atol = 1e-3;
    tolerance.rtol = 1e-2;
    tolerance.row_distance = 1e-5;
  }
  float& at(int64_t row, int64_t column) { return got.data<float>()[row * 512 + column]; }
  Verdict compare() const { return harness::compare(got, want, tolerance); }
};

}  // namespace

TEST_CASE_FIXTURE(Fixture, "compare: equal tensors pass") {
  CHECK(compare().passed);
  CHECK(compare().message.empty());
}

TEST_CASE_FIXTURE(Fixture, "compare: one wrong element is named by query and head") {
  at(4, 402) += 0.5f;
  const Verdict verdict = compare();
  CHECK_FALSE(verdict.passed);
  CHECK(contains(verdict.message, "out: 1 of 3072 elements are wrong"));
  CHECK(contains(verdict.message, "out[query 1, head 1, 402] got "));
}

TEST_CASE_FIXTURE(Fixture, "compare: NaN never passes by arithmetic") {
  at(0, 0) = float(kNan);
  CHECK_FALSE(compare().passed);
  want.values[0] = kNan;
  CHECK(compare().passed);
  at(0, 0) = 1;
  CHECK_FALSE(compare().passed);
}

TEST_CASE_FIXTURE(Fixture, "compare: a NaN in the expected values hides nothing else in its row") {
  at(0, 0) = float(kNan);
  want.values[0] = kNan;
  at(0, 1) += 0.5f;
  CHECK_FALSE(compare().passed);
}

TEST_CASE_FIXTURE(Fixture, "compare: infinities agree in place and sign") {
  at(0, 7) = float(kInf);
  CHECK_FALSE(compare().passed);
  want.values[7] = -kInf;
  CHECK_FALSE(compare().passed);
  want.values[7] = kInf;
  CHECK(compare().passed);
  at(0, 7) = 3e38f;
  CHECK_FALSE(compare().passed);
}

TEST_CASE_FIXTURE(Fixture, "compare: a NaN tolerance passes nothing") {
  tolerance.atol = kNan;
  CHECK_FALSE(compare().passed);
}

TEST_CASE_FIXTURE(Fixture, "compare: an expected row of zeros must be exactly zero") {
  for (int64_t i = 0; i < 512; ++i) want.values[std::size_t(512 + i)] = at(1, i) = 0;
  CHECK(compare().passed);
  at(1, 3) = 1e-7f;
  CHECK_FALSE(compare().passed);
  SUBCASE("but noise excuses it") {
    tolerance.noise.assign(want.values.size(), 1e-6);
    CHECK(compare().passed);
  }
  SUBCASE("or the tolerance does") {
    tolerance.exact_zero_rows = false;
    tolerance.row_distance = 0;
    CHECK(compare().passed);
  }
}

TEST_CASE_FIXTURE(Fixture, "compare: a zeroed row among many fails (a global measure would let it pass)") {
  for (int64_t i = 0; i < 512; ++i) at(5, i) = 0;
  CHECK_FALSE(compare().passed);
}

TEST_CASE_FIXTURE(Fixture,
                  "compare: a row that is off as a whole fails though each element is within its bound") {
  for (int64_t i = 0; i < 512; ++i) at(2, i) *= 1.008f;
  const Verdict verdict = compare();
  CHECK_FALSE(verdict.passed);
  CHECK(contains(verdict.message, "1 of 6 rows are too far off as a whole"));
  CHECK(contains(verdict.message, "out[query 0, head 2, 0]"));
  tolerance.row_distance = 0;
  CHECK(compare().passed);
}

TEST_CASE_FIXTURE(Fixture, "compare: relative row error without element-wise test") {
  tolerance = {};
  tolerance.elementwise = false;
  tolerance.row_error = 2e-2;
  at(3, 9) += 0.3f;  // a row of norm 22
  CHECK(compare().passed);
  at(3, 10) += 0.5f;
  CHECK_FALSE(compare().passed);
  CHECK(contains(compare().message, "relative error |got - want| / |want|"));
  at(3, 10) = float(kNan);
  CHECK_FALSE(compare().passed);
}

TEST_CASE_FIXTURE(Fixture, "compare: parts of a row are judged on their own") {
  // The small part is wrong by a tenth, which drowns in the size of the other.
  for (int64_t i = 448; i < 512; ++i) {
    want.values[std::size_t(i)] = 1e-3 * at(0, i);
    at(0, i) *= 1.1e-3f;
  }
  tolerance.rtol = 0.2;
  CHECK(compare().passed);
  tolerance.splits = {448};
  CHECK_FALSE(compare().passed);
  CHECK(contains(compare().message, "out[query 0, head 0, 448]"));
}

TEST_CASE_FIXTURE(Fixture, "compare: sampled rows") {
  want.rows = {1, 4};
  want.values.clear();
  for (int64_t row : want.rows) {
    for (int64_t i = 0; i < 512; ++i) want.values.push_back(at(row, i));
  }
  at(0, 0) = 99;  // not sampled
  CHECK(compare().passed);
  at(4, 0) = 99;
  CHECK(contains(compare().message, "1 of 1024 elements are wrong; worst out[query 1, head 1, 0]"));
}

TEST_CASE_FIXTURE(Fixture, "compare: columns outside a row's window are not looked at") {
  want.windows.assign(6, {10, 20});
  at(0, 9) = at(0, 20) = float(kNan);
  CHECK(compare().passed);
  at(0, 10) = float(kNan);
  CHECK_FALSE(compare().passed);
}

TEST_CASE_FIXTURE(Fixture, "compare: a different shape") {
  got.shape = {1, 3, 2, 512};
  CHECK(contains(compare().message, "shape [1, 3, 2, 512], expected [1, 2, 3, 512]"));
}

TEST_CASE("compare: exact mode tells the zeros apart") {
  const Tensor got = generate::floats({2}, {0.0f, -0.0f});
  Tolerance exact;
  exact.exact = true;
  CHECK(compare(got, {"x", {2}, {}, {0.0, -0.0}, {}}, exact).passed);
  CHECK_FALSE(compare(got, {"x", {2}, {}, {0.0, 0.0}, {}}, exact).passed);
}

TEST_CASE("compare: the map shows where the errors are") {
  // 32 rows x 64 columns: columns 32..63 of the last 16 rows are wrong, and one element of row 0.
  Tensor got(DType::kF32, {32, 64});
  Expected want{"x", {32, 64}, {}, std::vector<double>(32 * 64, 1.0), {}};
  for (int64_t i = 0; i < 32 * 64; ++i) got.data<float>()[i] = i / 64 >= 16 && i % 64 >= 32 ? 2.f : 1.f;
  got.data<float>()[0] = 2;
  Tolerance tolerance;
  tolerance.rtol = 1e-3;
  const std::string text = compare(got, want, tolerance).message;
  CAPTURE(text);
  CHECK(contains(text, "513 of 2048 elements"));
  CHECK(contains(text, "\n  +...............\n  ................\n"));
  CHECK(contains(text, "\n  ................\n  ........########\n"));
  std::size_t lines = 0, shown = 0;
  for (std::size_t at = 0; (at = text.find("\n  ", at)) != std::string::npos; ++at) ++lines;
  for (std::size_t at = 0; (at = text.find("\nx[", at)) != std::string::npos; ++at) ++shown;
  CHECK(lines == 16);
  CHECK(shown == 5);
}

TEST_CASE("tolerances: every output of every stage has one that a fake cannot pass") {
  // Values of the size that outputs have (P-03: a tolerance wider than the data): all zero, constant and
  // reversed rows must fail.
  for (const Accuracy accuracy : {Accuracy::kF32, Accuracy::kBf16, Accuracy::kFp8}) {
    for (const auto& [stage, output] :
         {std::pair(Stage::kSparseMlaFwd, "out"), std::pair(Stage::kSparseMlaBwd, "dq"),
          std::pair(Stage::kSparseMlaBwd, "dkv")}) {
      if (accuracy == Accuracy::kFp8 && stage == Stage::kSparseMlaBwd) continue;
      const Tensor real = generate::normal(DType::kF32, {1, 1, 2, 576}, 3, 0.01f);
      Expected want{output, real.shape, {}, {}, {}};
      for (int64_t i = 0; i < real.elements(); ++i) want.values.push_back(real.at(i));
      Tolerance tolerance = tolerance_of(stage, output, accuracy, false);
      if (accuracy == Accuracy::kFp8) tolerance.row_error = 2e-2;
      CHECK(compare(real, want, tolerance).passed);
      Tensor fake(DType::kF32, real.shape);
      CHECK_FALSE(compare(fake, want, tolerance).passed);
      generate::fill(fake, 0, fake.elements(), 0.01f);
      CHECK_FALSE(compare(fake, want, tolerance).passed);
      for (int64_t i = 0; i < real.elements(); ++i)
        generate::set(fake, i, float(real.at(real.elements() - 1 - i)));
      CHECK_FALSE(compare(fake, want, tolerance).passed);
      for (int64_t i = 0; i < real.elements(); ++i)
        generate::set(fake, i, float(real.at(i)) * (i < 576 ? 1 : -1));
      CHECK_FALSE(compare(fake, want, tolerance).passed);
    }
  }
}

// The case list: every case has the property it claims, none is without effect, and making one is repeatable.
#include <doctest/doctest.h>

#include <set>

#include "host_machine.hpp"

using namespace dsa;
using namespace dsa::harness;

TEST_CASE("cases: names are unique within a stage and every stage has every kind") {
  std::set<std::pair<Stage, std::pair<int, std::string>>> names;
  for (const Case& item : cases()) {
    CHECK_MESSAGE(names.insert({item.stage, {int(item.kind), item.name}}).second, item.name);
    CHECK_FALSE(item.what.empty());
  }
  for (Stage stage : kStages) {
    for (CaseKind kind : {CaseKind::kSmall, CaseKind::kLarge, CaseKind::kExplain, CaseKind::kBench})
      CHECK_FALSE(cases_of(stage, kind).empty());
  }
}

TEST_CASE("cases: small ones have the properties they claim") {
  int claims = 0;
  for (const Case& item : cases()) {
    if (item.kind != CaseKind::kSmall || !item.holds) continue;
    ++claims;
    CHECK_MESSAGE(item.holds(item.make()), stage_name(item.stage), " ", item.name);
  }
  CHECK(claims > 80);
}

TEST_CASE("cases: small ones are small, fit their sizes, and are made the same every time") {
  test::HostMachine machine;
  for (const Case& item : cases()) {
    if (item.kind != CaseKind::kSmall) continue;
    CAPTURE(item.name);
    const Problem problem = item.make(), again = item.make();
    CHECK((stage_of(problem.args) == item.stage));
    const Resident resident(machine, problem);  // throws when an input has another shape
    int64_t elements = 0;
    for (const auto& [name, tensor] : problem.inputs) {
      elements += tensor.elements();
      CHECK((tensor.bytes == again.inputs.at(name).bytes));
    }
    CHECK(elements < 800000);
  }
}

TEST_CASE("cases: bench names are those of the results") {
  std::set<std::string> names;
  for (const Case* item : cases_of(Stage::kSparseMlaFwd, CaseKind::kBench)) names.insert(item->name);
  CHECK(names.count("s_q:4096/s_kv:8192/h_q:128/topk:2048"));
  CHECK(names.count("s_q:8192/s_kv:8192/h_q:128/topk:2048/causal"));
  names.clear();
  for (const Case* item : cases_of(Stage::kTopk, CaseKind::kBench)) names.insert(item->name);
  CHECK(names.count("rows:1/n:131072/topk:2048"));
}

TEST_CASE("generate: random numbers are normal, repeatable, and independent of the number of threads") {
  const Tensor a = generate::normal(DType::kF32, {1 << 20}, 1),
               b = generate::normal(DType::kF32, {1 << 20}, 2);
  double sum = 0, squares = 0, product = 0;
  for (int64_t i = 0; i < a.elements(); ++i) {
    sum += a.at(i);
    squares += a.at(i) * a.at(i);
    product += a.at(i) * b.at(i);
  }
  const double n = double(a.elements());
  CHECK(std::abs(sum / n) < 5e-3);
  CHECK(squares / n == doctest::Approx(1).epsilon(0.01));
  CHECK(std::abs(product / n) < 5e-3);
  CHECK(a.at(777777) == generate::normal(DType::kF32, {777778}, 1).at(777777));
}

TEST_CASE("generate: indices are distinct, in range, and -1 after the last") {
  for (const int64_t n : {0, 1, 2, 7, 64, 100, 8192}) {
    for (uint64_t seed = 0; seed < 20; ++seed) {
      std::vector<int32_t> row(100);
      generate::distinct(row.data(), 100, n, seed);
      const int64_t valid = std::min<int64_t>(100, n);
      const std::set<int32_t> distinct(row.begin(), row.begin() + valid);
      CHECK(int64_t(distinct.size()) == valid);
      if (valid > 0) CHECK((*distinct.begin() >= 0 && *distinct.rbegin() < n));
      CHECK(std::count(row.begin() + valid, row.end(), -1) == 100 - valid);
    }
  }
}

TEST_CASE("generate: causal indices are visible ones") {
  generate::Sparse sizes{1, 5, 64, 1, 1, 32};
  sizes.causal = true;
  sizes.q_start = 10;
  sizes.kv_stride = 4;
  const Problem problem = generate::sparse_fwd(sizes);
  for (int64_t query = 0; query < 5; ++query) {
    CHECK(generate::valid_slots(problem, 0, query) == last_visible_row(query, 10, 4) + 1);
  }
}

// The checker against kernels that are wrong in the ways kernels are wrong. Each must be caught, by name.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "host_machine.hpp"
#include "reference/index_topk.hpp"
#include "reference/indexer.hpp"
#include "reference/quantize.hpp"
#include "reference/sparse_mla_bwd.hpp"
#include "reference/sparse_mla_fwd.hpp"
#include "reference/topk.hpp"

using namespace dsa;
using namespace dsa::harness;
using test::contains;

namespace {

// ---- An honest kernel, and what a saboteur does around it -------------------------------------------------

void compute(const QuantizeArgs& a) {
  reference::quantize(a);
}
void compute(const IndexerArgs& a) {
  reference::indexer(a);
}
void compute(const TopkArgs& a) {
  reference::topk(a);
}
void compute(const IndexTopkArgs& a) {
  reference::index_topk(a);
}
void compute(const SparseMlaFwdArgs& a) {
  reference::sparse_mla_fwd(a);
}
void compute(const SparseMlaBwdArgs& a) {
  reference::sparse_mla_bwd(a);
}

int honest(const Args& args, void*) {
  std::visit([](const auto& a) { compute(a); }, args);
  return 0;
}

struct Span {
  char* data;
  std::size_t bytes;
  DType dtype;
};

/// Where the inputs or outputs of a launch lie.
std::vector<Span> spans(Args args, bool outputs) {
  std::vector<Span> result;
  for (const Binding& binding : bindings(args)) {
    char* address = nullptr;
    std::memcpy(&address, static_cast<void*>(binding.pointer), sizeof address);
    if (binding.output == outputs && !binding.scratch && address) {
      result.push_back(
          {address, std::size_t(element_count(binding.shape)) * size_of(binding.dtype), binding.dtype});
    }
  }
  return result;
}

int writes_nothing(const Args&, void*) {
  return 0;
}

int writes_zeros(const Args& args, void*) {
  for (const Span& out : spans(args, true)) std::memset(out.data, 0, out.bytes);
  return 0;
}

int nan_in_one_element(const Args& args, void*) {
  honest(args, nullptr);
  const Span out = spans(args, true)[0];
  const std::size_t size = size_of(out.dtype), middle = out.bytes / size / 2 * size;
  std::memset(out.data + middle, out.dtype == DType::kI32 ? 0x55 : 0xff, size);
  return 0;
}

int one_element_too_far(const Args& args, void*) {
  honest(args, nullptr);
  const Span out = spans(args, true)[0];
  std::memset(out.data + out.bytes, out.dtype == DType::kI32 ? 0xff : 0, size_of(out.dtype));  // -1, or 0.0
  return 0;
}

int one_element_too_early(const Args& args, void*) {
  honest(args, nullptr);
  const Span out = spans(args, true).back();
  std::memset(out.data - 4, 0, 4);
  return 0;
}

int damages_its_inputs(const Args& args, void*) {
  honest(args, nullptr);
  spans(args, false)[0].data[5] ^= 1;
  return 0;
}

int returns_an_error(const Args&, void*) {
  return 719;
}

int throws(const Args&, void*) {
  throw std::runtime_error("deadlock: no thread can run");
}

int g_launches = 0;

int right_ten_times_then_wrong(const Args& args, void*) {
  honest(args, nullptr);
  if (++g_launches > 10) {
    const Span out = spans(args, true)[0];
    std::memset(out.data, 0, out.bytes / 2);
  }
  return 0;
}

std::vector<std::string> g_cache;

int caches_its_first_result(const Args& args, void*) {
  const std::vector<Span> out = spans(args, true);
  if (g_cache.empty()) {
    honest(args, nullptr);
    for (const Span& span : out) g_cache.emplace_back(span.data, span.bytes);
  }
  for (std::size_t i = 0; i < out.size(); ++i) std::memcpy(out[i].data, g_cache[i].data(), out[i].bytes);
  return 0;
}

int differs_in_the_last_bit(const Args& args, void*) {
  honest(args, nullptr);
  const Span out = spans(args, true)[0];
  const bool blank = std::all_of(out.data, out.data + 64, [](char byte) { return byte == 0; });
  if (++g_launches % 3 == 0 && !blank) out.data[0] ^= 1;  // the lowest bit of the first element
  return 0;
}

// ---- Saboteurs of one stage -------------------------------------------------------------------------------

constexpr int kTile = 64;

/// The attention stages with other indices than those given.
template <class Change>
int with_indices(const Args& args, const Change& change) {
  return std::visit(
      [&](auto a) {
        if constexpr (requires { a.attn_sink; }) {
          std::vector<int32_t> indices(a.indices, a.indices + int64_t(a.b) * a.s_q * a.g * a.topk);
          for (std::size_t row = 0; row < indices.size(); row += std::size_t(a.topk))
            change(&indices[row], a.topk);
          a.indices = indices.data();
          compute(a);
        }
        return 0;
      },
      args);
}

int drops_the_last_tile(const Args& args, void*) {
  return with_indices(
      args, [](int32_t* row, int topk) { std::fill(row + (topk - 1) / kTile * kTile, row + topk, -1); });
}

int ignores_minus_one(const Args& args, void*) {
  return with_indices(args, [](int32_t* row, int topk) { std::replace(row, row + topk, -1, 0); });
}

/// Every tile is computed with the KV of the tile before it, as with a phase that is off by one.
int off_by_one_in_phase(const Args& args, void*) {
  return with_indices(
      args, [](int32_t* row, int topk) { std::copy_backward(row, row + topk - kTile, row + topk); });
}

int forgets_duplicates(const Args& args, void*) {
  return with_indices(args, [](int32_t* row, int topk) {
    for (int j = 1; j < topk; ++j) {
      if (std::find(row, row + j, row[j]) != row + j) row[j] = -1;
    }
  });
}

int adds_to_what_was_there(const Args& args, void*) {
  static std::vector<float> total;
  honest(args, nullptr);
  const auto& a = std::get<SparseMlaBwdArgs>(args);
  const int64_t count = int64_t(a.b) * a.s_kv * a.g * kDimQK;
  total.resize(std::size_t(count));
  for (int64_t i = 0; i < count; ++i) {
    a.dkv_f32[i] = total[std::size_t(i)] += a.dkv_f32[i];  // never cleared between launches
    a.dkv[i] = to_bf16(a.dkv_f32[i]);
  }
  return 0;
}

int topk_reversed(const Args& args, void*) {
  honest(args, nullptr);
  const auto& a = std::get<TopkArgs>(args);
  for (int64_t i = 0; i < a.rows; ++i) {
    int32_t* row = a.indices + i * a.topk;
    std::reverse(row, std::find(row, row + a.topk, -1));
  }
  return 0;
}

int topk_scans_the_padding(const Args& args, void*) {
  TopkArgs a = std::get<TopkArgs>(args);
  a.n = int(a.logits_stride);
  std::vector<int32_t> ke(std::size_t(a.rows), a.n);
  a.ke = ke.data();
  compute(a);
  return 0;
}

/// Query 0 gets a column that it should not, instead of its first.
int selects_one_too_small(const Args& args, void*) {
  honest(args, nullptr);
  const auto& a = std::get<IndexTopkArgs>(args);
  for (int32_t column = a.ks[0]; column < a.ke[0]; ++column) {
    if (std::find(a.indices, a.indices + a.topk, column) != a.indices + a.topk) continue;
    a.indices[0] = column;
    return 0;
  }
  return 1;
}

/// Windows of at most topk columns lose their last.
int cuts_whole_windows(const Args& args, void*) {
  honest(args, nullptr);
  const auto& a = std::get<IndexTopkArgs>(args);
  for (int64_t i = 0; i < a.s_q; ++i)
    if (a.ke[i] > a.ks[i] && a.ke[i] - a.ks[i] <= a.topk) a.indices[i * a.topk + a.ke[i] - a.ks[i] - 1] = -1;
  return 0;
}

int writes_row_padding(const Args& args, void*) {
  honest(args, nullptr);
  const auto& a = std::get<IndexerArgs>(args);
  a.logits[a.s_kv] = -INFINITY;
  return 0;
}

// ---- Problems ---------------------------------------------------------------------------------------------

Problem attention() {
  Problem p = generate::sparse_fwd({1, 2, 200, 2, 1, 192});
  int32_t* row = generate::slots(p, 0, 1);
  row[5] = row[70] = row[100] = -1;
  row[150] = row[151];
  return p;
}

Problem quantization() {
  QuantizeArgs args;
  args.rows = 3;
  args.n = 128;
  Problem p{args, {}};
  p.inputs["x"] = generate::normal(DType::kBF16, {3, 128}, 1);
  return p;
}

Problem indexing() {
  IndexerArgs args;
  args.s_q = 3;
  args.s_kv = 70;
  args.logits_stride = 72;
  args.h_i = 32;
  args.d_i = 64;
  Problem p{args, {}};
  p.inputs["q"] = generate::normal(DType::kE4M3, {3, 32, 64}, 1);
  p.inputs["k"] = generate::normal(DType::kE4M3, {70, 64}, 2);
  p.inputs["k_scale"] = generate::uniform({70}, 3, 0.5f, 1);
  p.inputs["weights"] = generate::normal(DType::kF32, {3, 32}, 4);
  p.inputs["ks"] = generate::integers({3}, {0, 5, 0});
  p.inputs["ke"] = generate::integers({3}, {70, 60, 3});
  return p;
}

/// Windows longer than topk, and one that is selected whole.
Problem index_selecting() {
  Problem scores = indexing();
  const auto& i = std::get<IndexerArgs>(scores.args);
  IndexTopkArgs args;
  args.s_q = i.s_q, args.s_kv = i.s_kv, args.h_i = i.h_i, args.d_i = i.d_i;
  args.topk = 16, args.chunk = 2, args.logits_stride = i.logits_stride;
  return {args, std::move(scores.inputs)};
}

Problem selecting() {
  TopkArgs args;
  args.rows = 3;
  args.n = 200;
  args.logits_stride = 208;
  args.topk = 16;
  Problem p{args, {}};
  p.inputs["logits"] = generate::normal(DType::kF32, {3, 200}, 1);
  p.inputs["ks"] = generate::integers({3}, {0, 5, 0});
  p.inputs["ke"] = generate::integers({3}, {200, 190, 3});
  return p;
}

std::vector<Problem> one_of_each_stage() {
  std::vector<Problem> problems;
  problems.push_back(quantization());
  problems.push_back(indexing());
  problems.push_back(selecting());
  problems.push_back(index_selecting());
  problems.push_back(attention());
  problems.push_back(generate::sparse_bwd(attention()));
  return problems;
}

CheckResult check(const Problem& problem, int (*launch)(const Args&, void*), bool repeatable = true,
                  int repeats = 3) {
  g_launches = 0;
  g_cache.clear();
  test::HostMachine machine;
  const Stage stage = stage_of(problem.args);
  return check_rung(test::rung(stage, launch, reference_accuracy(stage), repeatable), machine, problem,
                    Judge(problem), {.repeats = repeats});
}

void must_be_caught(const Problem& problem, int (*launch)(const Args&, void*), const std::string& says,
                    int repeats = 3) {
  CAPTURE(describe(problem.args));
  const CheckResult result = check(problem, launch, true, repeats);
  CAPTURE(result.message);
  CHECK((result.status == Status::kIncorrect));
  CHECK(contains(result.message, says));
}

}  // namespace

TEST_CASE("saboteurs of any stage are caught; the honest kernel passes") {
  for (const Problem& problem : one_of_each_stage()) {
    CAPTURE(describe(problem.args));
    const CheckResult result = check(problem, honest);
    CHECK_MESSAGE((result.status == Status::kPassed), result.message);
    must_be_caught(problem, writes_nothing, "launch 1 of 3: ");
    must_be_caught(problem, writes_zeros, "launch 1 of 3: ");
    must_be_caught(problem, nan_in_one_element, "launch 1 of 3: ");
    must_be_caught(problem, one_element_too_far, " bytes past the end");
    must_be_caught(problem, one_element_too_early, "wrote 4 bytes before the start");
    must_be_caught(problem, damages_its_inputs, "was changed by the kernel");
    must_be_caught(problem, caches_its_first_result, "an earlier result");
    must_be_caught(problem, differs_in_the_last_bit, "");
    must_be_caught(problem, right_ten_times_then_wrong,
                   "launch 10 of 12: ", 12);  // the blank launch counts too
  }
}

TEST_CASE("saboteurs of attention are caught, forward and backward") {
  for (const Problem& problem : {attention(), generate::sparse_bwd(attention())}) {
    must_be_caught(problem, drops_the_last_tile, "elements are wrong");
    must_be_caught(problem, ignores_minus_one, "elements are wrong");
    must_be_caught(problem, off_by_one_in_phase, "elements are wrong");
    must_be_caught(problem, forgets_duplicates, "elements are wrong");
  }
  must_be_caught(generate::sparse_bwd(attention()), adds_to_what_was_there, "");
}

TEST_CASE("saboteurs of the selection are caught, an honest order passes") {
  CHECK((check(selecting(), topk_reversed).status == Status::kPassed));
  must_be_caught(selecting(), topk_scans_the_padding, "is outside the window");
  must_be_caught(index_selecting(), selects_one_too_small, "is left out");
  must_be_caught(index_selecting(), cuts_whole_windows, "is selected whole");
  must_be_caught(indexing(), writes_row_padding, "'logits': wrote into the padding after column 69 of row 0");
}

TEST_CASE("small differences between launches are allowed only to kernels that say so") {
  const Problem problem = attention();
  const Judge judge(problem);
  test::HostMachine machine;
  for (const bool repeatable : {true, false}) {
    g_launches = 0;
    const RungEntry rung =
        test::rung(Stage::kSparseMlaFwd, differs_in_the_last_bit, Accuracy::kBf16, repeatable);
    const CheckResult result = check_rung(rung, machine, problem, judge, {.repeats = 4});
    CHECK((result.status == (repeatable ? Status::kIncorrect : Status::kPassed)));
    CHECK(contains(result.message, repeatable ? "not repeatable: 'out' differs" : ""));
  }
}

TEST_CASE("failures of the launch are runtime errors") {
  CHECK((check(attention(), returns_an_error).status == Status::kRuntimeError));
  CHECK(contains(check(attention(), returns_an_error).message, "error 719"));
  CHECK((check(attention(), throws).status == Status::kRuntimeError));
  CHECK(contains(check(attention(), throws).message, "deadlock: no thread can run"));
}

TEST_CASE("an unsupported shape is neither right nor wrong, and is not launched") {
  RungEntry rung = test::rung(Stage::kSparseMlaFwd, throws, Accuracy::kBf16);
  rung.unsupported = [](const Args&) -> const char* { return "h_q must be a multiple of 64"; };
  test::HostMachine machine;
  const Problem problem = attention();
  const CheckResult result = check_rung(rung, machine, problem, Judge(problem));
  CHECK((result.status == Status::kUnsupported));
  CHECK(result.message == "h_q must be a multiple of 64");
  CHECK((run_once(rung, machine, problem).status == Status::kUnsupported));
}

TEST_CASE("a few launches do not see the eleventh") {
  CHECK((check(attention(), right_ten_times_then_wrong, true, 3).status == Status::kPassed));
}

/// @file exact.cpp
/// Every rung of index_topk selects exactly what is largest among the logits of the indexer that it is made of: the judge of
/// `dsa check` allows for the rounding of a score, this test does not.
///
///     index_topk_exact                   on the emulator
///     index_topk_exact --device gpu      the large cases as well
#include <CLI/CLI.hpp>

#include <cstdio>

#include "cuda/harness/cases.hpp"
#include "cuda/harness/check.hpp"
#include "reference/index_topk.hpp"
#include "reference/window.hpp"

using namespace dsa;
using namespace dsa::harness;

namespace {

constexpr const char* kScorer = "09_lean_epilogue";

/// The problem of scoring all queries at once.
Problem scoring(const Problem& problem) {
  const auto& a = std::get<IndexTopkArgs>(problem.args);
  IndexerArgs i = reference::indexer_of(a);
  i.logits_stride = a.logits_stride;
  return {i, problem.inputs};
}

/// The problem of selecting from these logits, without the windows that are selected whole.
Problem selecting(const Problem& problem, Tensor logits) {
  const auto& a = std::get<IndexTopkArgs>(problem.args);
  TopkArgs t;
  t.rows = a.s_q, t.n = a.s_kv, t.topk = a.topk;
  t.deterministic = a.deterministic;
  t.logits_stride = a.s_kv;
  Problem p{t, {}};
  p.inputs["logits"] = std::move(logits);
  for (const char* name : {"ks", "ke"}) p.inputs[name] = problem.inputs.at(name);
  int32_t *ks = p.inputs["ks"].data<int32_t>(), *ke = p.inputs["ke"].data<int32_t>();
  for (int64_t i = 0; i < a.s_q; ++i) {
    const reference::Window window = reference::clamp_window(ks[i], ke[i], a.s_kv);
    if (window.end - window.begin <= a.topk) ks[i] = ke[i] = 0;
  }
  return p;
}

/// Rows of windows that are selected whole become what an empty window gives.
void drop_whole_windows(const Problem& problem, Tensor& indices) {
  const auto& a = std::get<TopkArgs>(problem.args);
  const int32_t *ks = problem.inputs.at("ks").data<int32_t>(), *ke = problem.inputs.at("ke").data<int32_t>();
  for (int64_t i = 0; i < a.rows; ++i)
    if (ks[i] == 0 && ke[i] == 0) std::fill_n(indices.data<int32_t>() + i * a.topk, a.topk, kInvalid);
}

int run(Device device) {
  if (const std::string why = unavailable(device); !why.empty()) {
    std::printf("index_topk_exact: no %s: %s\n", device_name(device), why.c_str());
    return 4;
  }
  const std::unique_ptr<Machine> machine = open(device);
  const RungEntry* scorer = find_rung(Stage::kIndexer, device, kScorer);
  if (!scorer) return std::printf("index_topk_exact: no step %s\n", kScorer), 2;
  int failures = 0, checks = 0;
  for (const Case& item : cases()) {
    const bool wanted = item.kind == CaseKind::kSmall || (item.kind == CaseKind::kLarge && device == Device::kGpu);
    if (item.stage != Stage::kIndexTopk || !wanted) continue;
    const Problem problem = item.make();
    RunResult scored = run_once(*scorer, *machine, scoring(problem));
    if (scored.status == Status::kUnsupported) continue;
    const Problem selection = selecting(problem, std::move(scored.outputs.at("logits")));
    const Judge judge(selection);
    for (const RungEntry& rung : rungs()) {
      if (rung.stage != Stage::kIndexTopk || rung.device != device) continue;
      RunResult result = run_once(rung, *machine, problem);
      if (result.status == Status::kUnsupported) continue;
      ++checks;
      if (result.status == Status::kPassed) drop_whole_windows(selection, result.outputs.at("indices"));
      const Verdict verdict = result.status == Status::kPassed ? judge.judge(result.outputs, Accuracy::kExact)
                                                               : Verdict{false, result.message};
      if (verdict.passed) continue;
      ++failures;
      std::printf("%s %s: %s\n", rung.name.c_str(), item.name.c_str(), verdict.message.c_str());
    }
  }
  std::printf("%d selections compared with the logits of %s, %d wrong\n", checks, kScorer, failures);
  return failures > 0 || checks == 0 ? 1 : 0;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"index_topk against the logits of its own indexer, exactly", "index_topk_exact"};
  std::string device = "emulator";
  app.add_option("--device", device, "emulator or gpu")->check(CLI::IsMember({"emulator", "gpu"}));
  CLI11_PARSE(app, argc, argv);
  return run(device == "gpu" ? Device::kGpu : Device::kEmulator);
}

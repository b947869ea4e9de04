/// @file cases.hpp
/// The one list of problems, shared by the tests, `dsa check` and the benchmarks.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "problem.hpp"

namespace dsa::harness {

/// Where a case is used.
enum class CaseKind {
  kSmall,    ///< seconds on the emulator; also what compute-sanitizer runs
  kLarge,    ///< GPU only: real sizes, 2^31 offsets, s_q = 70000; judged on sampled rows
  kExplain,  ///< seconds on the emulator, and long enough for a pipeline to get going: what `dsa explain` runs
  kBench,    ///< timed on the GPU; name follows docs/results: "s_q:4096/s_kv:8192/h_q:128/topk:2048"
};

struct Case {
  Stage stage;
  CaseKind kind;
  std::string name;
  std::string what;               ///< one line: what this case is there to catch
  std::function<Problem()> make;  ///< deterministic
  /// Whether the data really have the property that `what` claims; null for plain random data.
  std::function<bool(const Problem&)> holds = nullptr;
};

const std::vector<Case>& cases();

/// Cases of one stage and kind.
std::vector<const Case*> cases_of(Stage stage, CaseKind kind);

}  // namespace dsa::harness

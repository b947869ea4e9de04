/// The exercises of "No GPU needed": what the chapter prints of the planted bugs is what the emulator says of them. That
/// the answers are right is checked with all solved exercises (tests/solve_exercises.sh).
#include <doctest/doctest.h>

// A build with a sanitizer does not judge plain loads and stores, and the thread sanitizer would stop at the third bug.
#if defined(DSA_INSTRUMENTED)

#include <algorithm>
#include <cctype>
#include <fstream>
#include <iterator>

#include "cuda/harness/cases.hpp"
#include "cuda/harness/check.hpp"
#include "walkthrough/exercises/emulator_1_copied_rows.cu"
#include "walkthrough/exercises/emulator_2_pieces.cu"
#include "walkthrough/exercises/emulator_3_roles.cu"

using namespace dsa;
using namespace dsa::harness;

namespace {

/// The chapter breaks long lines.
std::string one_line(const std::string& text) {
  std::string result;
  for (const char c : text) {
    const bool space = std::isspace(static_cast<unsigned char>(c));
    if (!space) result += c;
    else if (!result.empty() && result.back() != ' ') result += ' ';
  }
  return result;
}

std::string chapter() {
  std::ifstream file(DSA_SOURCE_DIR "/walkthrough/03_no_gpu_needed.md");
  return one_line({std::istreambuf_iterator<char>(file), {}});
}

/// As `dsa check --stage quantize --step STEP --device emulator --case CASE --schedule SCHEDULE --seed SEED` has it.
CheckResult check_exercise(const std::string& step, const std::string& case_name, const std::string& schedule,
                           uint64_t seed) {
  const RungEntry* rung = find_rung(Stage::kQuantize, Device::kEmulator, step);
  REQUIRE(rung != nullptr);
  for (const Case* item : cases_of(Stage::kQuantize, CaseKind::kSmall)) {
    if (item->name != case_name) continue;
    const Problem problem = item->make();
    const auto machine = open(Device::kEmulator);
    set_emulator_schedule(schedule, seed);
    CheckResult result = check_rung(*rung, *machine, problem, Judge(problem));
    set_emulator_schedule("round_robin", 0);
    return result;
  }
  FAIL("no such case");
  return {};
}

}  // namespace

TEST_CASE("the planted bugs of the exercises are found, in the words that the chapter prints") {
  struct Found { const char *step, *schedule; uint64_t seed; };
  for (const Found& found : {Found{"ex_copied_rows", "round_robin", 1}, Found{"ex_pieces", "round_robin", 1},
                             Found{"ex_pieces", "random", 1}, Found{"ex_roles", "round_robin", 1}}) {
    const CheckResult result = check_exercise(found.step, "f32/n:576/scale:none", found.schedule, found.seed);
    CHECK(result.status == Status::kRuntimeError);
    CAPTURE(std::string(found.step));
    CAPTURE(result.message);
    CHECK(chapter().find(one_line(result.message)) != std::string::npos);
  }
}

TEST_CASE("some of the exercises' cases pass, as the chapter says") {
  CHECK(check_exercise("ex_pieces", "f32/n:1000/scale:none", "round_robin", 1).status == Status::kPassed);
  CHECK(check_exercise("ex_pieces", "f32/n:128/scale:none", "round_robin", 1).status == Status::kPassed);
  CHECK(check_exercise("ex_roles", "f32/n:128/scale:none", "round_robin", 1).status == Status::kPassed);
}

TEST_CASE("every schedule finds the third bug, as the chapter says") {
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    const CheckResult result = check_exercise("ex_roles", "f32/n:576/scale:none", "random", seed);
    CAPTURE(seed);
    CAPTURE(result.message);
    CHECK(result.message.find("nothing orders the two") != std::string::npos);
  }
}

#endif

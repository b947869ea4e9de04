#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>

#include <nlohmann/json.hpp>

#include "cases.hpp"
#include "commands.hpp"
#include "explain.hpp"
#include "timeline.hpp"

namespace dsa::harness {

namespace {

/// The first case with this in its name that the step supports; those made for this command come first.
const Case& choose_case(const RungEntry& rung, const std::string& text, Problem& problem) {
  std::string names, reason;
  for (const CaseKind kind : {CaseKind::kExplain, CaseKind::kSmall}) {
    for (const Case* item : cases_of(rung.stage, kind)) {
      names += (names.empty() ? "" : ", ") + item->name;
      if (item->name.find(text) == std::string::npos) continue;
      problem = item->make();
      const char* unsupported = rung.unsupported(problem.args);
      if (!unsupported) return *item;
      if (reason.empty()) reason = "'" + item->name + "': " + unsupported;
    }
  }
  if (reason.empty())
    throw BadInput("no case of " + std::string(stage_name(rung.stage)) + " has '" + text +
                   "' in its name (cases: " + names + ")");
  throw Failure(kUnsupportedShape, rung.name + " does not support " + reason);
}

/// Under another name first, so that a failure leaves no half of it.
void write_text(const std::string& path, const std::string& text) {
  const std::string partial = path + ".partial-" + std::to_string(getpid());
  std::ofstream stream(partial, std::ios::binary | std::ios::trunc);
  stream << text;
  stream.close();
  if (stream && std::rename(partial.c_str(), path.c_str()) == 0) return;
  const std::string why = std::strerror(errno);
  std::remove(partial.c_str());
  throw BadInput(path + ": cannot be written: " + why);
}

std::string drawing(const Explanation& explanation, uint64_t from, uint64_t to) {
  const emulator::Trace* launch = explanation.longest();
  if (!launch)
    throw BadInput(explanation.step + " has no asynchronous copies, products or named steps to draw");
  return timeline_svg(*launch,
                      {explanation.stage + "/" + explanation.step + ", " + explanation.case_name, from, to});
}

}  // namespace

void explain(const ExplainCommand& command) {
  const Stage stage = stage_by_name(command.stage);
  require_step(command.stage, command.step);
  if (command.step == kReference) throw BadInput("the reference is no kernel; only kernels can be explained");
  const RungEntry* rung = find_rung(stage, Device::kEmulator, command.step);
  if (!rung) throw BadInput("step '" + command.step + "' does not run on the emulator");

  Problem problem;
  const Case& item = choose_case(*rung, command.case_text, problem);
  Explanation explanation = explain_run(*rung, problem);
  explanation.case_name = item.name;
  if (!command.svg.empty()) write_text(command.svg, drawing(explanation, command.from, command.to));
  if (!command.json.empty()) write_text(command.json, explanation_json(explanation).dump(1) + "\n");
  std::fputs(explanation_text(explanation).c_str(), stdout);
}

}  // namespace dsa::harness

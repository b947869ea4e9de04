#include <unistd.h>

#include <algorithm>

#include "commands.hpp"

namespace dsa::harness {

namespace {

void check_options(Stage stage, const ScalarOptions& scalars) {
  const std::vector<std::string>& names = scalar_names(stage);
  for (const auto& [name, value] : scalars) {
    if (std::find(names.begin(), names.end(), name) == names.end()) {
      throw BadInput("option --" + name + " does not belong to " + stage_name(stage));
    }
  }
}

/// The named rung, or without a name the last of the ladder that supports the problem.
const RungEntry& choose_rung(Stage stage, Device device, const std::string& step, const Problem& problem) {
  if (!step.empty()) {
    const RungEntry* rung = find_rung(stage, device, step);
    if (!rung) throw BadInput("step '" + step + "' does not run on " + device_name(device));
    return *rung;
  }
  const std::vector<const RungEntry*> ladder = rungs_of(stage, device);
  if (ladder.empty())
    throw BadInput(std::string("no step of ") + stage_name(stage) + " on " + device_name(device));
  for (auto rung = ladder.rbegin(); rung != ladder.rend(); ++rung) {
    if (!(*rung)->unsupported(problem.args)) return **rung;
  }
  throw Failure(kUnsupportedShape, std::string("no step of ") + stage_name(stage) + " supports " +
                                       describe(problem.args) + ": " +
                                       ladder.back()->unsupported(problem.args));
}

/// A size that no memory here can hold is refused before it is tried.
void check_memory(const Problem& problem) {
  Args args = problem.args;
  double bytes = 0;
  for (const Binding& binding : bindings(args)) {
    double size = binding.output ? double(size_of(binding.dtype)) : 0;
    for (int64_t extent : binding.shape) size *= double(extent);
    bytes += size;
  }
  const double present = double(sysconf(_SC_PHYS_PAGES)) * double(sysconf(_SC_PAGESIZE));
  if (bytes > present) {
    throw Failure(kUnsupportedShape, "the outputs of " + describe(problem.args) + " need " +
                                         std::to_string(int64_t(bytes / 1e9)) +
                                         " GB, more than this machine has");
  }
}

TensorMap run_step(const RunCommand& command, Stage stage, Device device, Machine* machine,
                   const Problem& problem) {
  if (!machine) return run_reference(problem);
  const RungEntry& rung = choose_rung(stage, device, command.step, problem);
  RunResult result = run_once(rung, *machine, problem);
  if (result.status == Status::kUnsupported) {
    throw Failure(kUnsupportedShape,
                  rung.name + " does not support " + describe(problem.args) + ": " + result.message);
  }
  if (result.status != Status::kPassed) {
    throw Failure(kCheckFailed, rung.name + ": " + status_name(result.status) + ": " + result.message);
  }
  return std::move(result.outputs);
}

}  // namespace

void run(const RunCommand& command) {
  const Stage stage = stage_by_name(command.stage);
  check_options(stage, command.scalars);
  if (!command.step.empty()) require_step(command.stage, command.step);
  const Device device = choose_device(command.device, command.step);
  const std::unique_ptr<Machine> machine = open_for_step(device, command.step);

  TensorFile file = read_safetensors(command.in);
  ScalarOptions scalars = command.scalars;
  scalars.insert(file.metadata.begin(), file.metadata.end());  // keeps what the options gave
  const Problem problem = make_problem(stage, std::move(file.tensors), scalars, command.in);
  check_memory(problem);

  TensorFile result;
  for (auto& [name, tensor] : run_step(command, stage, device, machine.get(), problem)) {
    if (name == "dkv_f32") continue;  // the accumulator of dkv
    const auto shape = problem.file_shapes.find(name);
    if (shape != problem.file_shapes.end()) tensor.shape = shape->second;
    result.tensors.emplace(name, std::move(tensor));
  }
  write_safetensors(command.out, result);
}

}  // namespace dsa::harness

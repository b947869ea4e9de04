/// @file commands.hpp
/// What `dsa list`, `dsa run`, `dsa check` and `dsa explain` do, apart from reading the command line.
#pragma once

#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "check.hpp"

namespace dsa::harness {

/// Exit statuses of every command.
enum ExitStatus { kDone = 0, kCheckFailed = 1, kBadInput = 2, kUnsupportedShape = 3, kNoDevice = 4 };

/// Ends a command with a message and a status other than kBadInput, which BadInput stands for.
struct Failure : std::runtime_error {
  Failure(ExitStatus status, const std::string& what) : std::runtime_error(what), status(status) {}
  ExitStatus status;
};

/// Scalars given as options; each overrides the file's metadata.
using ScalarOptions = std::map<std::string, std::string>;

/// Prints a table of all steps.
void list_steps();

struct RunCommand {
  std::string stage, in, out;
  std::string step;    ///< empty: the reference on the cpu, elsewhere the last step that supports the sizes
  std::string device;  ///< empty: cpu for the reference, else gpu if there is one, else emulator
  ScalarOptions scalars;
};

/// Runs one stage on a file and writes its outputs to another.
void run(const RunCommand& command);

struct CheckCommand {
  std::vector<std::string> files;  ///< empty: the built-in cases
  std::string stage, step, device, case_text;
  bool large = false;  ///< the large cases instead of the small ones
  CheckOptions options;
  ScalarOptions scalars;
};

/// Checks steps on cases or files and prints one line for each.
ExitStatus check(const CheckCommand& command);

struct ExplainCommand {
  std::string stage, step;
  std::string case_text;      ///< part of a case's name; empty: the first case that the step supports
  std::string svg, json;      ///< files to write; empty: none
  uint64_t from = 0, to = 0;  ///< modelled clocks to draw; a `to` of 0 is the end
};

/// Runs a step once on the emulator and prints what it did.
void explain(const ExplainCommand& command);

// ---- Names and devices, used by the commands --------------------------------------------------------------

inline constexpr const char* kReference = "reference";

/// These throw BadInput with a list of what exists.
Stage stage_by_name(const std::string& name);
Device device_by_name(const std::string& name);

/// Throws BadInput, listing the steps, unless the stage (or without one, any stage) has the step on some
/// device.
void require_step(const std::string& stage, const std::string& step);

/// The steps of a stage on a device, in reading order.
std::vector<const RungEntry*> rungs_of(Stage stage, Device device);

/// The device of a command: the named one; else the cpu for the reference, and for a kernel the best one
/// present.
Device choose_device(const std::string& device, const std::string& step);

/// Opens the device for the step; null for the cpu, where only the reference runs. Throws BadInput when the
/// step cannot run there and Failure(kNoDevice) when the device is absent.
std::unique_ptr<Machine> open_for_step(Device device, const std::string& step);

}  // namespace dsa::harness

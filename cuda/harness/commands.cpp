#include "commands.hpp"

#include <algorithm>
#include <cstdio>

namespace dsa::harness {

namespace {

constexpr Device kDevices[] = {Device::kCpu, Device::kEmulator, Device::kGpu};

template <class T, std::size_t n>
T by_name(const T (&all)[n], const char* (*name_of)(T), const std::string& name, const std::string& kind) {
  std::string known;
  for (T value : all) {
    if (name == name_of(value)) return value;
    known += (known.empty() ? "" : ", ") + std::string(name_of(value));
  }
  throw BadInput("unknown " + kind + " '" + name + "' (known: " + known + ")");
}

const char* accuracy_name(Accuracy accuracy) {
  switch (accuracy) {
    case Accuracy::kExact:
      return "exact";
    case Accuracy::kF32:
      return "f32";
    case Accuracy::kBf16:
      return "bf16";
    case Accuracy::kFp8:
      return "fp8";
  }
  return "?";
}

}  // namespace

Stage stage_by_name(const std::string& name) {
  return by_name(kStages, stage_name, name, "stage");
}
Device device_by_name(const std::string& name) {
  return by_name(kDevices, device_name, name, "device");
}

void require_step(const std::string& stage, const std::string& step) {
  std::vector<std::string> known{kReference};
  for (const RungEntry& rung : rungs()) {
    if (!stage.empty() && stage != stage_name(rung.stage)) continue;
    if (std::find(known.begin(), known.end(), rung.name) == known.end()) known.push_back(rung.name);
  }
  if (std::find(known.begin(), known.end(), step) != known.end()) return;
  std::string list;
  for (const std::string& name : known) list += (list.empty() ? "" : ", ") + name;
  throw BadInput("unknown step '" + step + "'" + (stage.empty() ? "" : " of " + stage) + " (known: " + list +
                 ")");
}

std::vector<const RungEntry*> rungs_of(Stage stage, Device device) {
  std::vector<const RungEntry*> found;
  for (const RungEntry& rung : rungs()) {
    if (rung.stage == stage && rung.device == device) found.push_back(&rung);
  }
  return found;
}

Device choose_device(const std::string& device, const std::string& step) {
  if (!device.empty()) return device_by_name(device);
  if (step.empty() || step == kReference) return Device::kCpu;
  return unavailable(Device::kGpu).empty() ? Device::kGpu : Device::kEmulator;
}

std::unique_ptr<Machine> open_for_step(Device device, const std::string& step) {
  const bool reference = step == kReference || (step.empty() && device == Device::kCpu);
  if (reference && device != Device::kCpu) throw BadInput("the reference runs on --device cpu only");
  if (!reference && device == Device::kCpu) {
    throw BadInput("step '" + step + "' runs on --device emulator or gpu; the cpu has only the reference");
  }
  if (reference) return nullptr;
  const std::string reason = unavailable(device);
  if (!reason.empty())
    throw Failure(kNoDevice, std::string("no ") + device_name(device) + " here: " + reason);
  return open(device);
}

void list_steps() {
  constexpr const char* kFormat = "%-15s %-28s %-13s %-8s %-10s %s\n";
  std::printf(kFormat, "stage", "step", "devices", "accuracy", "repeatable", "summary");
  const std::vector<RungEntry>& all = rungs();  // sorted: the devices of a step stand together
  auto rung = all.begin();
  for (Stage stage : kStages) {
    std::printf(kFormat, stage_name(stage), kReference, "cpu", "float64", "yes",
                "the specification, in Eigen");
    while (rung != all.end() && rung->stage == stage) {
      const RungEntry& first = *rung;
      std::string devices;
      for (; rung != all.end() && rung->stage == stage && rung->name == first.name; ++rung) {
        devices += (devices.empty() ? "" : ",") + std::string(device_name(rung->device));
      }
      std::printf(kFormat, stage_name(stage), first.name.c_str(), devices.c_str(),
                  accuracy_name(first.accuracy), first.repeatable ? "yes" : "no", first.summary.c_str());
    }
  }
}

}  // namespace dsa::harness

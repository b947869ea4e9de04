#include "registry.hpp"

#include <algorithm>
#include <stdexcept>
#include <tuple>

namespace dsa {

namespace {

std::vector<RungEntry>& registered() {
  static std::vector<RungEntry> entries;   // made on first use: registration runs before main, in any order
  return entries;
}

auto key(const RungEntry& r) { return std::tuple(r.stage, r.name, r.device); }

std::vector<RungEntry> sorted() {
  std::vector<RungEntry> list = registered();
  std::sort(list.begin(), list.end(), [](const RungEntry& a, const RungEntry& b) { return key(a) < key(b); });
  const auto twin = std::adjacent_find(list.begin(), list.end(),
                                       [](const RungEntry& a, const RungEntry& b) { return key(a) == key(b); });
  if (twin != list.end()) {
    throw std::logic_error(std::string("two kernels are called ") + stage_name(twin->stage) + "/" + twin->name +
                           ": " + twin->file + " and " + (twin + 1)->file);
  }
  return list;
}

}  // namespace

const char* stage_name(Stage stage) {
  switch (stage) {
    case Stage::kQuantize: return "quantize";
    case Stage::kIndexer: return "indexer";
    case Stage::kTopk: return "topk";
    case Stage::kIndexTopk: return "index_topk";
    case Stage::kSparseMlaFwd: return "sparse_mla_fwd";
    case Stage::kSparseMlaBwd: return "sparse_mla_bwd";
  }
  return "?";
}

const char* device_name(Device device) {
  switch (device) {
    case Device::kCpu: return "cpu";
    case Device::kEmulator: return "emulator";
    case Device::kGpu: return "gpu";
  }
  return "?";
}

const std::vector<RungEntry>& rungs() {
  static const std::vector<RungEntry> list = sorted();
  return list;
}

const RungEntry* find_rung(Stage stage, Device device, const std::string& name) {
  for (const RungEntry& r : rungs())
    if (r.stage == stage && r.device == device && r.name == name) return &r;
  return nullptr;
}

void register_rung(RungEntry entry) { registered().push_back(std::move(entry)); }

}  // namespace dsa

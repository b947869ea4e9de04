#include "memory_counts.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <bitset>
#include <deque>
#include <map>
#include <unordered_map>

#include "shadow.hpp"

namespace dsa::emulator {

bool counting_memory = false;

namespace {

constexpr std::size_t kWarpSize = 32;
constexpr std::size_t kSectorBytes = 32;
constexpr std::size_t kPageSectors = 128;
constexpr std::size_t kBanks = 32;
constexpr std::size_t kBankBytes = 4;
constexpr uint32_t kEveryLane = ~uint32_t(0);

/// One execution of an instruction by a warp, as far as its lanes have come.
struct Execution {
  uint32_t lanes = 0;
  std::array<uint32_t, kWarpSize> offset{};
};

/// An instruction in one warp.
struct Site {
  std::size_t bytes = 0;
  std::array<uint64_t, kWarpSize> times{};     // that a lane has come
  uint64_t first = 0;                          // number of open.front()
  std::deque<Execution> open;                  // tallied ones have no lanes
};

struct Wavefronts {
  uint64_t needed = 0, ideal = 0;
};

MemoryCounts counts;
std::unordered_map<uintptr_t, std::bitset<kPageSectors>> sectors_read;   // by page
std::map<std::size_t, std::unordered_map<const void*, Site>> sites;      // by warp
std::unordered_map<const void*, Wavefronts> wavefronts;

/// How often shared memory must answer: once per different word of the fullest bank. Accesses of 8 and 16 bytes go by
/// half and quarter warps.
Wavefronts wavefronts_of(const Execution& execution, std::size_t bytes) {
  const std::size_t words = std::max<std::size_t>(bytes / kBankBytes, 1);
  const std::size_t lanes = kWarpSize / words;
  Wavefronts result;
  for (std::size_t first = 0; first < kWarpSize; first += lanes) {
    std::array<std::size_t, kWarpSize> touched;
    std::size_t count = 0;
    for (std::size_t lane = first; lane < first + lanes; ++lane) {
      if (!(execution.lanes >> lane & 1)) continue;
      for (std::size_t i = 0; i < words; ++i) touched[count++] = execution.offset[lane] / kBankBytes + i;
    }
    if (count == 0) continue;
    std::sort(touched.begin(), touched.begin() + count);
    const auto end = std::unique(touched.begin(), touched.begin() + count);
    std::array<unsigned, kBanks> in_bank{};
    for (auto word = touched.begin(); word != end; ++word) ++in_bank[*word % kBanks];
    result.needed += *std::max_element(in_bank.begin(), in_bank.end());
    result.ideal += 1;
  }
  return result;
}

void tally(Execution& execution, std::size_t bytes, const void* pc) {
  if (execution.lanes == 0) return;
  const Wavefronts w = wavefronts_of(execution, bytes);
  counts.shared_wavefronts += w.needed;
  counts.shared_wavefronts_ideal += w.ideal;
  wavefronts[pc].needed += w.needed;
  wavefronts[pc].ideal += w.ideal;
  execution.lanes = 0;
}

}  // namespace

void count_global(uintptr_t address, std::size_t bytes, Access::Kind kind) {
  if (kind != Access::Kind::kRead) counts.global_written += bytes;
  if (kind != Access::Kind::kRead || bytes == 0) return;
  counts.global_read += bytes;
  for (uintptr_t sector = address / kSectorBytes; sector <= (address + bytes - 1) / kSectorBytes; ++sector)
    sectors_read[sector / kPageSectors].set(sector % kPageSectors);
}

void count_shared(std::size_t bytes, Access::Kind kind) {
  (kind == Access::Kind::kRead ? counts.shared_read : counts.shared_written) += bytes;
}

void count_lane(std::size_t warp, unsigned lane, std::size_t offset, std::size_t bytes, const void* pc) {
  if (!std::has_single_bit(bytes) || bytes > 16) return;   // a copy of many instructions
  Site& site = sites[warp][pc];
  site.bytes = bytes;
  const std::size_t n = site.times[lane]++ - site.first;
  if (n >= site.open.size()) site.open.resize(n + 1);
  Execution& execution = site.open[n];
  execution.offset[lane] = uint32_t(offset);
  execution.lanes |= 1u << lane;
  if (execution.lanes == kEveryLane) tally(execution, bytes, pc);
  for (; !site.open.empty() && site.open.front().lanes == 0; ++site.first) site.open.pop_front();
}

void end_lanes(std::size_t first_warp, std::size_t warps) {
  const auto first = sites.lower_bound(first_warp), last = sites.lower_bound(first_warp + warps);
  for (auto warp = first; warp != last; ++warp)
    for (auto& [pc, site] : warp->second)
      for (Execution& execution : site.open) tally(execution, site.bytes, pc);
  sites.erase(first, last);
}

void count_memory(bool on) {
  counting_memory = on;
  last_hit.fill({});   // a short cut past the counting
  if (!on) return;
  counts = {};
  sectors_read.clear();
  sites.clear();
  wavefronts.clear();
}

MemoryCounts memory_counts() {
  MemoryCounts result = counts;
  for (const auto& [page, sectors] : sectors_read) result.global_read_distinct += sectors.count() * kSectorBytes;
  return result;
}

std::vector<BankConflict> bank_conflicts() {
  std::vector<BankConflict> result;
  for (const auto& [pc, w] : wavefronts)
    if (w.needed > w.ideal) result.push_back({pc, w.needed, w.ideal});
  std::sort(result.begin(), result.end(), [](const BankConflict& a, const BankConflict& b) {
    return a.wavefronts - a.ideal > b.wavefronts - b.ideal;
  });
  return result;
}

}  // namespace dsa::emulator

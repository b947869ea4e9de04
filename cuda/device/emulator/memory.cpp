#include "memory.hpp"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <map>

#include "memory_counts.hpp"
#include "running.hpp"
#include "sanitizer.hpp"
#include "shadow.hpp"
#include "source.hpp"

namespace dsa::emulator {

bool cp_async_needs_fence = true;
std::array<AddressRange, 1024> last_hit;
std::vector<Shadow> shadows;

namespace {

using Kind = Access::Kind;
using Proxy = Access::Proxy;

constexpr std::size_t kWarpSize = 32;
constexpr uintptr_t kNullBytes = 64 * 1024;            // addresses that a small offset from null gives
constexpr uintptr_t kBehindShared = 1024;              // the scheduler leaves that much free behind a block's
constexpr uintptr_t kNearShared = 1 << 20;             // up to where an address is taken to have meant it
constexpr uintptr_t kFar = uintptr_t(1) << 29;         // from where "past the end of X" explains nothing

// ---- Allocations -------------------------------------------------------------------------------------------
/// Memory that kernels may use: a named part of an allocation, or all of one that has none.
struct Part : AddressRange {
  std::string name;
};

struct Allocation {
  std::size_t bytes;
  std::map<uintptr_t, Part> named;
};

std::map<uintptr_t, Allocation> allocations;
std::vector<Part> parts;                               // of all allocations, by address

void rebuild_parts() {
  parts.clear();
  for (const auto& [begin, allocation] : allocations) {
    for (const auto& [address, part] : allocation.named) parts.push_back(part);
    if (allocation.named.empty()) parts.push_back({{begin, allocation.bytes}, ""});
  }
  last_hit.fill({});
}

bool in_global_memory(uintptr_t address, std::size_t bytes, const void* pc) {
  if (parts.empty()) {
    for (const Shadow& shadow : shadows)
      if (address - (shadow.span.begin + shadow.span.bytes) < kBehindShared) return false;
    return address >= kNullBytes;
  }
  const auto after = std::upper_bound(parts.begin(), parts.end(), address,
                                      [](uintptr_t a, const Part& part) { return a < part.begin; });
  if (after == parts.begin() || !std::prev(after)->holds(address, bytes)) return false;
  if (!counting_memory) last_hit_of(pc) = *std::prev(after);
  return true;
}

// ---- Shared memory -----------------------------------------------------------------------------------------
/// The shared memory that holds this byte, or null. The block in `slot` is asked first.
Shadow* shadow_of(uintptr_t address, std::size_t slot) {
  if (slot < shadows.size() && shadows[slot].span.holds(address, 1)) return &shadows[slot];
  for (Shadow& shadow : shadows)
    if (shadow.span.holds(address, 1)) return &shadow;
  return nullptr;
}

/// Calls visit(granule, mask of its bytes, offset of the first of them) for the granules of an access.
template <class Visit> void for_each_granule(std::size_t offset, std::size_t bytes, const Visit& visit) {
  constexpr std::size_t size = Shadow::kGranuleBytes;
  for (const std::size_t end = offset + bytes; offset < end;) {
    const std::size_t first = offset % size, last = std::min(size, first + (end - offset));
    visit(offset / size, uint8_t((1u << last) - (1u << first)), offset);
    offset += last - first;
  }
}

// ---- Words -------------------------------------------------------------------------------------------------
std::string count_of(std::size_t bytes) { return std::to_string(bytes) + (bytes == 1 ? " byte" : " bytes"); }

std::string verb(const Access& access) {
  const char* word = access.kind == Kind::kRead ? "reads " : access.kind == Kind::kWrite ? "writes " : "updates ";
  return (*access.instruction ? std::string(access.instruction) + " " : std::string()) + word;
}

std::string hexadecimal(uintptr_t address) {
  char text[20];
  std::snprintf(text, sizeof text, "0x%zx", std::size_t(address));
  return text;
}

std::string name_of(const Part& part) {
  return part.name.empty() ? "an allocation of " + count_of(part.bytes) : "'" + part.name + "'";
}

/// How far an address is away from [begin, begin + bytes).
uintptr_t distance(uintptr_t address, uintptr_t begin, std::size_t bytes) {
  if (address < begin) return begin - address;
  return address < begin + bytes ? 0 : address - (begin + bytes);
}

/// "'kv' + 1152": an address in or behind a part.
std::string place_in(const Part& part, uintptr_t address) {
  return name_of(part) + " + " + std::to_string(address - part.begin);
}

std::string past_the_end(const Access& access, const Shadow& shadow) {
  const std::size_t offset = uintptr_t(access.address) - shadow.span.begin;
  return verb(access) + count_of(access.bytes) + " at offset " + std::to_string(offset) +
         " of shared memory, past the end of the block's " + count_of(shadow.span.bytes);
}

/// An access that meets neither shared nor global memory.
std::string out_of_bounds(const Access& access, std::size_t slot) {
  const auto address = uintptr_t(access.address);
  const std::string what = verb(access) + count_of(access.bytes);
  if (address < kNullBytes) return what + " at address " + hexadecimal(address) + ": a null pointer?";

  const Part* nearest = nullptr;
  uintptr_t least = ~uintptr_t(0);
  for (const Part& part : parts) {
    const uintptr_t d = distance(address, part.begin, part.bytes);
    if (d < least) least = d, nearest = &part;
  }
  if (slot < shadows.size()) {
    const Shadow& own = shadows[slot];
    const uintptr_t d = distance(address, own.span.begin, own.span.bytes);
    if (d < least && d < kNearShared) {
      if (address >= own.span.begin) return past_the_end(access, own);
      return what + ", " + count_of(own.span.begin - address) + " before the block's shared memory";
    }
  }
  if (!nearest || least > kFar) return what + " at " + hexadecimal(address) + ", which is no device memory";
  if (address < nearest->begin)
    return what + ", " + count_of(nearest->begin - address) + " before " + name_of(*nearest);
  const uintptr_t end = nearest->begin + nearest->bytes;
  const std::string beyond = address < end
                                 ? "the last " + std::to_string(address + access.bytes - end) + " of them"
                                 : count_of(address - end);
  return what + " at " + place_in(*nearest, address) + ", " + beyond + " past its end" +
         (nearest->name.empty() ? "" : " (" + count_of(nearest->bytes) + ")");
}

std::string not_written(const Access& access, std::size_t offset) {
  return verb(access) + count_of(access.bytes) + " of shared memory at offset " + std::to_string(offset) +
         " that nobody has written";
}

bool is_engine(std::size_t writer) { return writer % kWritersPerBlock >= kMaxWarps; }

std::string misaligned(const Access& access, std::size_t slot) {
  const auto address = uintptr_t(access.address);
  std::string place = hexadecimal(address);
  for (const Part& part : parts)
    if (part.holds(address, 1)) place = place_in(part, address);
  if (const Shadow* shadow = shadow_of(address, slot))
    place = "offset " + std::to_string(address - shadow->span.begin) + " of shared memory";
  return "misaligned: " + verb(access) + count_of(access.bytes) + " at " + place + ", which is not a multiple of " +
         std::to_string(access.bytes);
}

// ---- Rules -------------------------------------------------------------------------------------------------
uint32_t entry(const std::vector<uint32_t>& counts, std::size_t warp) {
  return warp < counts.size() ? counts[warp] : 0;
}

/// What is wrong with an access of the async proxy after `past`; "" when that is in the past of `clock`, behind a fence if it went
/// through the generic proxy.
/// @param did  "wrote" or "read"
std::string not_fenced(const Access& access, std::size_t offset, const Shadow::Touch& past, const char* did, const Clock& clock) {
  if (entry(past.proxy == Proxy::kGeneric ? clock.fenced : clock.seen, past.warp) >= past.tick) return "";
  return verb(access) + "shared memory at offset " + std::to_string(offset) + " that warp " +
         std::to_string(past.warp % kMaxWarps) + " " + did + where(past.pc) +
         (entry(clock.seen, past.warp) < past.tick
              ? std::string(
                    ", and nothing orders the two: a barrier is missing, or comes too early or too late") +
                    (is_engine(past.warp) ? ", or nobody waits for the copy" : "")
              : " through the generic proxy, without a fence.proxy.async in between");
}

#if defined(DSA_PLAIN_ACCESSES_UNSEEN)
constexpr bool kPlainStoresSeen = false;   // so a byte that seems not written may be
#else
constexpr bool kPlainStoresSeen = true;
#endif

std::string judge_shared(Shadow& shadow, const Access& access, std::size_t warp, const Clock& clock) {
  const std::size_t offset = uintptr_t(access.address) - shadow.span.begin;
  if (access.bytes > shadow.span.bytes - offset) return past_the_end(access, shadow);
  std::string verdict;
  if (access.kind != Kind::kWrite) {
    for_each_granule(offset, access.bytes, [&](std::size_t granule, uint8_t mask, std::size_t at) {
      const Shadow::Touch& write = shadow.last_write[granule];
      if (!verdict.empty()) return;
      if (kPlainStoresSeen && (shadow.written[granule] & mask) != mask) {
        verdict = not_written(access, at);
      } else if (access.proxy == Proxy::kAsync && (write.proxy == Proxy::kGeneric || is_engine(write.warp))) {
        verdict = not_fenced(access, at, write, "wrote", clock);
      }
      if (access.proxy == Proxy::kGeneric)
        shadow.last_read[granule] = {access.pc, entry(clock.seen, warp), uint16_t(warp), access.proxy};
    });
    if (!verdict.empty()) return verdict;
  }
  if (access.kind != Kind::kRead) {
    const bool fenceless = !cp_async_needs_fence && std::strcmp(access.instruction, "cp.async") == 0;
    const Proxy proxy = fenceless ? Proxy::kAsync : access.proxy;
    for_each_granule(offset, access.bytes, [&](std::size_t granule, uint8_t mask, std::size_t at) {
      // A copy does not queue up behind loads and stores that are still under way.
      if (access.proxy == Proxy::kAsync && shadow.written[granule] != 0 && verdict.empty()) {
        const Shadow::Touch& write = shadow.last_write[granule];
        verdict = not_fenced(access, at, shadow.last_read[granule], "read", clock);
        if (verdict.empty() && write.proxy == Proxy::kGeneric) verdict = not_fenced(access, at, write, "wrote", clock);
      }
      shadow.written[granule] |= mask;
      shadow.last_write[granule] = {access.pc, entry(clock.seen, warp), uint16_t(warp), proxy};
      shadow.last_read[granule] = {};
    });
  }
  return verdict;
}

}  // namespace

// ---- Interface ---------------------------------------------------------------------------------------------
void add_allocation(const void* address, std::size_t bytes) {
  allocations[uintptr_t(address)] = {bytes, {}};
  rebuild_parts();
}

void remove_allocation(const void* address) {
  allocations.erase(uintptr_t(address));
  rebuild_parts();
}

void name_allocation(const void* address, std::size_t bytes, const std::string& name) {
  const auto begin = uintptr_t(address);
  const auto after = allocations.upper_bound(begin);
  if (after == allocations.begin()) return;
  std::prev(after)->second.named[begin] = {{begin, bytes}, name};
  rebuild_parts();
}

void begin_shared(std::size_t slot, unsigned char* memory, std::size_t bytes) {
  if (slot >= shadows.size()) shadows.resize(slot + 1);
  Shadow& shadow = shadows[slot];
  shadow.span = {uintptr_t(memory), bytes};
  shadow.short_cut = counting_memory ? 0 : bytes / Shadow::kGranuleBytes;
  const std::size_t granules = (bytes + Shadow::kGranuleBytes - 1) / Shadow::kGranuleBytes;
  shadow.written.assign(granules, 0);
  // Nothing is asked about the last write of what nobody has written, unless that cannot be known.
  if (kPlainStoresSeen) shadow.last_write.resize(granules), shadow.last_read.resize(granules);
  else shadow.last_write.assign(granules, {}), shadow.last_read.assign(granules, {});
}

void end_shared(std::size_t slot) {
  shadows[slot].span = {};
  shadows[slot].short_cut = 0;
  end_lanes(slot * kWritersPerBlock, kWritersPerBlock);
}

std::string judge(const Access& access, std::size_t writer, const Clock& clock) {
  const auto address = uintptr_t(access.address);
  const std::size_t slot = writer / kWritersPerBlock;
  if (Shadow* shadow = shadow_of(address, slot)) {
    if (counting_memory) count_shared(access.bytes, access.kind);
    return judge_shared(*shadow, access, writer, clock);
  }
  if (!in_global_memory(address, access.bytes, access.pc)) return out_of_bounds(access, slot);
  if (counting_memory) count_global(address, access.bytes, access.kind);
  return "";
}

void judge_plain(const void* address, std::size_t bytes, Kind kind, const void* pc) {
  const Running thread = *running;
  OwnBusiness quiet;
  const std::string verdict = judge({address, bytes, kind, Proxy::kGeneric, pc, ""}, thread.warp, *thread.clock);
  if (!verdict.empty()) fault(verdict, pc);
  if (!counting_memory || kind == Kind::kAtomic) return;
  if (const Shadow* shadow = shadow_of(uintptr_t(address), thread.slot))
    count_lane(thread.warp, unsigned(thread.thread % kWarpSize), uintptr_t(address) - shadow->span.begin, bytes, pc);
}

void fault_misaligned(const void* address, std::size_t bytes, Kind kind, const void* pc) {
  const std::size_t slot = running->slot;
  OwnBusiness quiet;
  fault(misaligned({address, bytes, kind, Proxy::kGeneric, pc, ""}, slot), pc);
}

}  // namespace dsa::emulator

/// @file memory.hpp
/// What the emulator knows of memory: allocations with names, which bytes of shared memory were written, by whom, and
/// whether the async proxy may read them. Judges every access of a kernel, plain or asynchronous.
///
/// Plain loads and stores come from the compiler's own instrumentation: kernel files are compiled with
/// `-fsanitize=thread`, and instrumentation.cpp defines the functions that this makes them call (`__tsan_read4`, ...).
/// No thread-sanitizer library is linked. A build with a real sanitizer has no such calls and judges asynchronous
/// accesses only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace dsa::emulator {

/// One access. `pc` is the instruction in the kernel that made or, for asynchronous ones, issued it.
struct Access {
  enum class Kind { kRead, kWrite, kAtomic };
  /// kGeneric: loads, stores, cp.async, ldmatrix. kAsync: bulk copies, tensor copies, wgmma operands.
  enum class Proxy { kGeneric, kAsync };
  const void* address;
  std::size_t bytes;
  Kind kind;
  Proxy proxy = Proxy::kGeneric;
  const void* pc = nullptr;
  const char* instruction = "";   ///< for the verdict: "cp.async", "wgmma operand B", or "" for a plain load or store
};

/// Who writes: in each block of a slot its 32 warps, then for each warp the engine that makes its asynchronous copies. A
/// copy is nobody's past until it has been waited for, so its engine has a count of its own.
inline constexpr std::size_t kMaxWarps = 32;   // of a block
inline constexpr std::size_t kWritersPerBlock = 2 * kMaxWarps;

/// The happened-before clocks of those that are resident together: entry w counts the releases of writer w. `seen[w]`: how
/// much of w's past happened before this point; `fenced[w]`: how much of it, seen through a fence.proxy.async somewhere on
/// the way, the async proxy may rely on.
struct Clock {
  std::vector<uint32_t> seen, fenced;
  uint64_t time = 0;   ///< on the modelled clock, see trace.hpp
  void join(const Clock& other);
  void fence() { fenced = seen; }   // seen >= fenced always
};

// ---- Allocations -------------------------------------------------------------------------------------------
/// Device allocations, so that an access outside of all of them can be told from a sound one. While there is none,
/// every address but null counts as device memory: small programs hand their kernels whatever memory they have.
void add_allocation(const void* address, std::size_t bytes);
void remove_allocation(const void* address);
/// Gives a part of an allocation a name for verdicts, e.g. a tensor between its guard bands; accesses to the rest of
/// the allocation are then out of bounds. Replaces an earlier name of the same address.
void name_allocation(const void* address, std::size_t bytes, const std::string& name);

/// Shared memory of a block that becomes resident / is done. All bytes start as not written.
/// @param slot  0, 1, ... < resident blocks
void begin_shared(std::size_t slot, unsigned char* memory, std::size_t bytes);
void end_shared(std::size_t slot);

// ---- Judging -----------------------------------------------------------------------------------------------
/// Judges an access made now by `writer` with clock `clock`; returns a verdict, "" when it is sound. Marks written bytes as
/// written by `writer` at its current count.
/// @param writer  kWritersPerBlock * slot + warp in the block; + 32 for the warp's engine
std::string judge(const Access& access, std::size_t writer, const Clock& clock);

/// Whether bytes that a cp.async wrote need a fence.proxy.async before the async proxy reads them, like any other
/// write through the generic proxy. True to begin with, as PTX has it; false counts them as written by the async proxy.
extern bool cp_async_needs_fence;

// ---- Counting ----------------------------------------------------------------------------------------------
/// What kernels did to memory since count_memory(true), for `dsa explain`. An atomic counts as a load and a store,
/// red.add as a store.
struct MemoryCounts {
  uint64_t global_read = 0, global_written = 0;           ///< bytes, every access counted
  uint64_t global_read_distinct = 0;                      ///< bytes, each address once (32-byte sectors)
  uint64_t shared_read = 0, shared_written = 0;           ///< bytes
  uint64_t shared_wavefronts = 0, shared_wavefronts_ideal = 0;   ///< of plain accesses; what is more: bank conflicts
};
/// Starts from zero, or stops.
void count_memory(bool on);
MemoryCounts memory_counts();

/// Wavefronts of one instruction that loads from or stores to shared memory, over all warps and executions. Lanes are
/// not in lock-step here, so their n-th executions are taken to be one execution of the warp.
struct BankConflict {
  const void* pc;
  uint64_t wavefronts, ideal;
};
/// Instructions that need more wavefronts than they could, the worst first. Complete when their blocks have ended.
std::vector<BankConflict> bank_conflicts();

}  // namespace dsa::emulator

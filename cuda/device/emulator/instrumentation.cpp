/// The functions that `-fsanitize=thread` makes a kernel call before each of its loads and stores, and instead of each
/// of its atomics. In a build without a sanitizer these here are linked in place of the thread sanitizer's.
#include <pthread.h>

#include <cstdint>
#include <cstring>

#include "running.hpp"
#include "shadow.hpp"

// Bounds of the program's own code and data; the linker defines both.
extern "C" const char __executable_start[], _end[];

namespace {

using namespace dsa::emulator;
using Kind = Access::Kind;

/// The program's own code and data: threadIdx and the like, constants.
const AddressRange image{uintptr_t(__executable_start), uintptr_t(_end) - uintptr_t(__executable_start)};

/// The stack of the thread that launched the grid. The launch keeps the kernel's arguments there.
const AddressRange& launch_stack() {
  static thread_local const AddressRange span = [] {
    pthread_attr_t attributes;
    void* low = nullptr;
    std::size_t bytes = 0;
    if (pthread_getattr_np(pthread_self(), &attributes) == 0) {
      pthread_attr_getstack(&attributes, &low, &bytes);
      pthread_attr_destroy(&attributes);
    }
    return AddressRange{uintptr_t(low), bytes};
  }();
  return span;
}

/// The block's own shared memory, nothing special asked: true when that settles it.
template <std::size_t kBytes, Kind kKind>
[[gnu::always_inline]] inline bool shared_at_once(uintptr_t address, const void* pc) {
  constexpr std::size_t kGranules = kBytes / Shadow::kGranuleBytes;
  Shadow& shadow = shadows[running->slot];
  const std::size_t first = (address - shadow.span.begin) / Shadow::kGranuleBytes;
  if (kGranules == 0 || kKind == Kind::kAtomic || first >= shadow.short_cut) return false;
  if (kGranules > 1 && first + kGranules > shadow.short_cut) return false;
  const Shadow::Touch touch{pc, running->clock->seen[running->warp], uint16_t(running->warp), Access::Proxy::kGeneric};
  for (std::size_t i = first; i < first + kGranules; ++i) {
    if (kKind == Kind::kRead) {
      if (shadow.written[i] != Shadow::kAllWritten) return false;
      shadow.last_read[i] = touch;
    } else {
      shadow.written[i] = Shadow::kAllWritten;
      shadow.last_write[i] = touch;
      shadow.last_read[i] = {};
    }
  }
  return true;
}

void access_elsewhere(uintptr_t address, std::size_t bytes, Kind kind, const void* pc) {
  if (image.holds(address, bytes)) {
    last_hit_of(pc) = image;
  } else if (launch_stack().holds(address, bytes)) {
    last_hit_of(pc) = launch_stack();
  } else {
    judge_plain(reinterpret_cast<const void*>(address), bytes, kind, pc);
  }
}

bool on_own_stack(uintptr_t address) {
  return address - uintptr_t(running->stack_low) < uintptr_t(running->stack_high - running->stack_low);
}

/// Copies of any size; the compiler finds instructions for them whatever the address.
void access_range(const void* pointer, std::size_t bytes, Kind kind, const void* pc) {
  const auto address = uintptr_t(pointer);
  if (!running || bytes == 0 || last_hit_of(pc).holds(address, bytes) || on_own_stack(address)) return;
  access_elsewhere(address, bytes, kind, pc);
}

/// Every load and store of every kernel comes here, so the frequent cases are first.
template <std::size_t kBytes, Kind kKind> inline void access(const volatile void* pointer, const void* pc) {
  const auto address = uintptr_t(pointer);
  if (address % kBytes == 0) {
    if (!running) return;   // host code: launch functions, and whatever the linker took from a kernel's object file
    if (shared_at_once<kBytes, kKind>(address, pc) || last_hit_of(pc).holds(address, kBytes)) return;
    if (!on_own_stack(address)) access_elsewhere(address, kBytes, kKind, pc);
  } else if (running && !on_own_stack(address)) {
    fault_misaligned(const_cast<const void*>(pointer), kBytes, kKind, pc);
  }
}

}  // namespace

#define DSA_PC __builtin_return_address(0)   // in the kernel

extern "C" {

void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}

// ---- Loads and stores: one, two, ... bytes at once ------------------------------------------------------------
#define DSA_PLAIN(n)                                                                                    \
  void __tsan_read##n(const void* address) { access<n, Kind::kRead>(address, DSA_PC); }                 \
  void __tsan_write##n(const void* address) { access<n, Kind::kWrite>(address, DSA_PC); }               \
  void __tsan_unaligned_read##n(const void* address) { access_range(address, n, Kind::kRead, DSA_PC); } \
  void __tsan_unaligned_write##n(const void* address) { access_range(address, n, Kind::kWrite, DSA_PC); }
DSA_PLAIN(1)
DSA_PLAIN(2)
DSA_PLAIN(4)
DSA_PLAIN(8)
DSA_PLAIN(16)

// ---- Copies: structs, memcpy of a known size; clang's own names for the library's functions ---------------------
void __tsan_read_range(const void* address, std::size_t bytes) { access_range(address, bytes, Kind::kRead, DSA_PC); }
void __tsan_write_range(const void* address, std::size_t bytes) { access_range(address, bytes, Kind::kWrite, DSA_PC); }

void* __tsan_memcpy(void* to, const void* from, std::size_t bytes) {
  access_range(from, bytes, Kind::kRead, DSA_PC);
  access_range(to, bytes, Kind::kWrite, DSA_PC);
  return std::memcpy(to, from, bytes);
}
void* __tsan_memmove(void* to, const void* from, std::size_t bytes) {
  access_range(from, bytes, Kind::kRead, DSA_PC);
  access_range(to, bytes, Kind::kWrite, DSA_PC);
  return std::memmove(to, from, bytes);
}
void* __tsan_memset(void* address, int value, std::size_t bytes) {
  access_range(address, bytes, Kind::kWrite, DSA_PC);
  return std::memset(address, value, bytes);
}

// ---- Atomics: these replace the operation, so they carry it out; the strictest order serves for all -------------
void __tsan_atomic_thread_fence(int) { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
void __tsan_atomic_signal_fence(int) { __atomic_signal_fence(__ATOMIC_SEQ_CST); }

#define DSA_FETCH(bits, T, name)                                                                           \
  T __tsan_atomic##bits##_fetch_##name(volatile T* address, T value, int) {                                \
    access<sizeof(T), Kind::kAtomic>(address, DSA_PC);                                                     \
    return __atomic_fetch_##name(address, value, __ATOMIC_SEQ_CST);                                        \
  }
#define DSA_COMPARE(bits, T, name)                                                                         \
  int __tsan_atomic##bits##_compare_exchange_##name(volatile T* address, T* expected, T value, int, int) { \
    access<sizeof(T), Kind::kAtomic>(address, DSA_PC);                                                     \
    return __atomic_compare_exchange_n(address, expected, value, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST); \
  }
#define DSA_ATOMICS(bits, T)                                                                               \
  T __tsan_atomic##bits##_load(const volatile T* address, int) {                                           \
    access<sizeof(T), Kind::kRead>(address, DSA_PC);                                                       \
    return __atomic_load_n(address, __ATOMIC_SEQ_CST);                                                     \
  }                                                                                                        \
  void __tsan_atomic##bits##_store(volatile T* address, T value, int) {                                    \
    access<sizeof(T), Kind::kWrite>(address, DSA_PC);                                                      \
    __atomic_store_n(address, value, __ATOMIC_SEQ_CST);                                                    \
  }                                                                                                        \
  T __tsan_atomic##bits##_exchange(volatile T* address, T value, int) {                                    \
    access<sizeof(T), Kind::kAtomic>(address, DSA_PC);                                                     \
    return __atomic_exchange_n(address, value, __ATOMIC_SEQ_CST);                                          \
  }                                                                                                        \
  T __tsan_atomic##bits##_compare_exchange_val(volatile T* address, T expected, T value, int, int) {       \
    access<sizeof(T), Kind::kAtomic>(address, DSA_PC);                                                     \
    __atomic_compare_exchange_n(address, &expected, value, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);     \
    return expected;                                                                                       \
  }                                                                                                        \
  DSA_FETCH(bits, T, add)                                                                                  \
  DSA_FETCH(bits, T, sub)                                                                                  \
  DSA_FETCH(bits, T, and)                                                                                  \
  DSA_FETCH(bits, T, or)                                                                                   \
  DSA_FETCH(bits, T, xor)                                                                                  \
  DSA_COMPARE(bits, T, strong)                                                                             \
  DSA_COMPARE(bits, T, weak)
DSA_ATOMICS(8, uint8_t)
DSA_ATOMICS(16, uint16_t)
DSA_ATOMICS(32, uint32_t)
DSA_ATOMICS(64, uint64_t)

}  // extern "C"

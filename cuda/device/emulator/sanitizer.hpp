/// @file sanitizer.hpp
/// What the emulator tells the thread sanitizer, in a build that has it; nothing otherwise.
#pragma once

#include <cstddef>

#include "running.hpp"

#if defined(DSA_THREAD_SANITIZER)
extern "C" {
void __tsan_acquire(void* address);
void __tsan_release(void* address);
void AnnotateIgnoreReadsBegin(const char* file, int line);
void AnnotateIgnoreReadsEnd(const char* file, int line);
void AnnotateIgnoreWritesBegin(const char* file, int line);
void AnnotateIgnoreWritesEnd(const char* file, int line);
void* __tsan_create_fiber(unsigned flags);
void* __tsan_get_current_fiber();
void __tsan_switch_to_fiber(void* fiber, unsigned flags);
void __tsan_func_entry(void* pc);
void __tsan_func_exit();
void __tsan_read_range(void* address, unsigned long bytes);
void __tsan_write_range(void* address, unsigned long bytes);
}
#endif

namespace dsa::emulator {

/// Orders everything before a release_order() of the same object before everything after an acquire_order().
inline void acquire_order([[maybe_unused]] const void* object) {
#if defined(DSA_THREAD_SANITIZER)
  __tsan_acquire(const_cast<void*>(object));
#endif
}
inline void release_order([[maybe_unused]] const void* object) {
#if defined(DSA_THREAD_SANITIZER)
  __tsan_release(const_cast<void*>(object));
#endif
}

/// The emulator's own bookkeeping is no kernel's data: nobody must judge it, neither a thread sanitizer nor memory.cpp,
/// which would otherwise see it where the linker took a function of the standard library from a kernel's file. Each
/// function that kernels call begins with one of these. Fibers switch only while one lives.
class OwnBusiness {
 public:
  OwnBusiness() : kernel_(running) {
    running = nullptr;
#if defined(DSA_THREAD_SANITIZER)
    AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
    AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
#endif
  }
  ~OwnBusiness() {
#if defined(DSA_THREAD_SANITIZER)
    AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
    AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
#endif
    running = kernel_;
  }
  OwnBusiness(const OwnBusiness&) = delete;
  OwnBusiness& operator=(const OwnBusiness&) = delete;

 private:
  const Running* kernel_;
};

/// What makes the asynchronous accesses of a CUDA thread: its copies, its products. To the thread sanitizer it is a thread of
/// its own, ordered after the issue (`issued`, which the CUDA thread has released) and before whoever acquires what it
/// releases on completion. One per CUDA thread, reused; without the sanitizer, nothing.
class Engine {
 public:
  /// An access, attributed to the line of the kernel that issued it.
  void access([[maybe_unused]] const void* issued, [[maybe_unused]] const void* pc,
              [[maybe_unused]] const void* address, [[maybe_unused]] std::size_t bytes,
              [[maybe_unused]] bool write) {
#if defined(DSA_THREAD_SANITIZER)
    as_engine([&] {
      acquire_order(issued);
      __tsan_func_entry(const_cast<void*>(pc));
      if (write) __tsan_write_range(const_cast<void*>(address), bytes);
      else __tsan_read_range(const_cast<void*>(address), bytes);
      __tsan_func_exit();
    });
#endif
  }
  void release([[maybe_unused]] const void* object) {
#if defined(DSA_THREAD_SANITIZER)
    as_engine([&] { release_order(object); });
#endif
  }

#if defined(DSA_THREAD_SANITIZER)
  Engine() = default;
  Engine(const Engine&) = delete;   // the handle cannot be shared; making one costs a millisecond, so it stays for good
  Engine& operator=(const Engine&) = delete;

 private:
  template <class Work> void as_engine(const Work& work) {
    constexpr unsigned kNoSync = 1;
    if (!fiber_) fiber_ = __tsan_create_fiber(0);
    void* caller = __tsan_get_current_fiber();
    __tsan_switch_to_fiber(fiber_, kNoSync);
    work();
    __tsan_switch_to_fiber(caller, kNoSync);
  }
  void* fiber_ = nullptr;
#endif
};

}  // namespace dsa::emulator

/// @file fiber.hpp
/// A stack and a saved register set: what a CUDA thread is on the emulator.
#pragma once

#include <cstddef>

namespace dsa::emulator {

/// Memory for many stacks, each with an inaccessible page below it so that an overflow stops at once instead of
/// corrupting a neighbour. Grows, never shrinks, and is reused from launch to launch.
class StackPool {
 public:
  static constexpr std::size_t kStackBytes = 256 * 1024;  // address space; pages are committed when touched
  StackPool() = default;
  StackPool(const StackPool&) = delete;
  StackPool& operator=(const StackPool&) = delete;
  ~StackPool();
  void reserve(std::size_t stacks);
  char* top(std::size_t index) const;     ///< one past the highest byte of stack `index`

 private:
  void release();

  char* memory_ = nullptr;
  std::size_t stacks_ = 0;
};

/// One flow of control. `switch_to` saves the running one and resumes another; it is the only primitive.
class Fiber {
 public:
  Fiber() = default;
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;
  ~Fiber();

  /// Makes this fiber start `entry` on the given stack at the next switch to it. `entry` must never return; its
  /// last act is a switch away.
  void prepare(char* stack_top, void (*entry)());
  /// Makes this object stand for the calling thread's own stack.
  void adopt_current();
  /// @param synchronise whether a thread sanitizer should see an ordering between the two (the scheduler's own
  ///        switches at start and end do order; switches between CUDA threads must not).
  static void switch_to(Fiber& from, Fiber& to, bool synchronise);
  /// First statement of every `entry`: completes the switch for the address sanitizer.
  static void entered();
  /// Says that this fiber was stopped half-way and will be prepared anew. `heir`, the running fiber, is ordered after
  /// what it did; its handle stays with the sanitizer, which would object to its end.
  void abandon(Fiber& heir);

 private:
  void* stack_pointer_ = nullptr;
  const void* stack_bottom_ = nullptr;
  std::size_t stack_bytes_ = 0;
  void* fake_stack_ = nullptr;
  void* sanitizer_fiber_ = nullptr;
  bool owns_sanitizer_fiber_ = false;
};

}  // namespace dsa::emulator

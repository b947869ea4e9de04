#include "fiber.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <new>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
// The emulator is compiled without instrumentation even in a thread-sanitizer build (cuda/CMakeLists.txt), so the
// build tells it by this macro that the run-time library is there.
#if defined(DSA_THREAD_SANITIZER)
#include <sanitizer/tsan_interface.h>
#endif

// dsa_fiber_swap(save, load): push the callee-saved registers, store the stack pointer to *save, take `load` as the
// new one, pop, return. Everything else the calling convention lets a call destroy. (ucontext would do, but its
// swapcontext makes a system call, and kernels switch millions of times.)
#if defined(__x86_64__)
asm(R"(
.pushsection .text
.globl dsa_fiber_swap
.type dsa_fiber_swap,@function
dsa_fiber_swap:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size dsa_fiber_swap,.-dsa_fiber_swap
.popsection
)");
#elif defined(__aarch64__)
asm(R"(
.pushsection .text
.globl dsa_fiber_swap
.type dsa_fiber_swap,%function
dsa_fiber_swap:
  sub sp, sp, #160
  stp x19, x20, [sp, #0]
  stp x21, x22, [sp, #16]
  stp x23, x24, [sp, #32]
  stp x25, x26, [sp, #48]
  stp x27, x28, [sp, #64]
  stp x29, x30, [sp, #80]
  stp d8, d9, [sp, #96]
  stp d10, d11, [sp, #112]
  stp d12, d13, [sp, #128]
  stp d14, d15, [sp, #144]
  mov x9, sp
  str x9, [x0]
  mov sp, x1
  ldp x19, x20, [sp, #0]
  ldp x21, x22, [sp, #16]
  ldp x23, x24, [sp, #32]
  ldp x25, x26, [sp, #48]
  ldp x27, x28, [sp, #64]
  ldp x29, x30, [sp, #80]
  ldp d8, d9, [sp, #96]
  ldp d10, d11, [sp, #112]
  ldp d12, d13, [sp, #128]
  ldp d14, d15, [sp, #144]
  add sp, sp, #160
  ret
.size dsa_fiber_swap,.-dsa_fiber_swap
.popsection
)");
#else
#error "fiber.cpp knows x86-64 and aarch64; add dsa_fiber_swap for this processor"
#endif

extern "C" void dsa_fiber_swap(void** save, void* load);

namespace dsa::emulator {

namespace {
std::size_t page_bytes() {
  static const std::size_t bytes = std::size_t(sysconf(_SC_PAGESIZE));
  return bytes;
}
[[maybe_unused]] Fiber* switched_from = nullptr;  // for the address sanitizer's second half of a switch
}  // namespace

StackPool::~StackPool() { release(); }

void StackPool::release() {
  if (!memory_) return;
  const std::size_t bytes = stacks_ * (kStackBytes + page_bytes());
#if defined(__SANITIZE_ADDRESS__)
  // The red zones of frames that never returned would otherwise stay marked for whatever is mapped here next.
  __asan_unpoison_memory_region(memory_, bytes);
#endif
  munmap(memory_, bytes);
  memory_ = nullptr;
  stacks_ = 0;
}

#if defined(__SANITIZE_ADDRESS__)
/// A fiber that broke a rule is left as it stands, with the words of the verdict on its stack.
extern "C" const char* __lsan_default_suppressions() { return "leak:dsa::emulator\n"; }
#endif

void StackPool::reserve(std::size_t stacks) {
  if (stacks <= stacks_) return;
  release();
  const std::size_t stride = kStackBytes + page_bytes();
  void* memory = mmap(nullptr, stacks * stride, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  memory_ = static_cast<char*>(memory);
  stacks_ = stacks;
  for (std::size_t i = 0; i < stacks; ++i) mprotect(memory_ + i * stride, page_bytes(), PROT_NONE);
}

char* StackPool::top(std::size_t index) const {
  return memory_ + (index + 1) * (kStackBytes + page_bytes());
}

Fiber::~Fiber() {
#if defined(DSA_THREAD_SANITIZER)
  if (owns_sanitizer_fiber_) __tsan_destroy_fiber(sanitizer_fiber_);
#endif
}

void Fiber::prepare(char* stack_top, void (*entry)()) {
  stack_bottom_ = stack_top - StackPool::kStackBytes;
  stack_bytes_ = StackPool::kStackBytes;
  fake_stack_ = nullptr;
#if defined(__SANITIZE_ADDRESS__)
  // Whoever used this stack last never returned from its frames; their red zones are still marked.
  __asan_unpoison_memory_region(stack_bottom_, stack_bytes_);
#endif
#if defined(__x86_64__)
  // From low to high: six registers, the address `ret` takes, and a zero return address that ends a backtrace.
  // On entry the stack pointer must be 8 past a multiple of 16, as after a call.
  auto* slots = reinterpret_cast<uintptr_t*>(stack_top) - 10;
  std::memset(slots, 0, 10 * sizeof *slots);
  slots[6] = reinterpret_cast<uintptr_t>(entry);
  stack_pointer_ = slots;
#else
  auto* slots = reinterpret_cast<uintptr_t*>(stack_top) - 20;
  std::memset(slots, 0, 20 * sizeof *slots);
  slots[11] = reinterpret_cast<uintptr_t>(entry);  // x30, where `ret` goes
  stack_pointer_ = slots;
#endif
#if defined(DSA_THREAD_SANITIZER)
  // Making one costs a millisecond, so a handle serves one thread after another.
  if (!owns_sanitizer_fiber_) sanitizer_fiber_ = __tsan_create_fiber(0);
  owns_sanitizer_fiber_ = true;
#endif
}

void Fiber::adopt_current() {
#if defined(DSA_THREAD_SANITIZER)
  sanitizer_fiber_ = __tsan_get_current_fiber();
#endif
}

void Fiber::abandon([[maybe_unused]] Fiber& heir) {
#if defined(DSA_THREAD_SANITIZER)
  __tsan_switch_to_fiber(sanitizer_fiber_, __tsan_switch_to_fiber_no_sync);
  __tsan_switch_to_fiber(heir.sanitizer_fiber_, 0);
#endif
  owns_sanitizer_fiber_ = false;
}

void Fiber::switch_to(Fiber& from, Fiber& to, [[maybe_unused]] bool synchronise) {
#if defined(__SANITIZE_ADDRESS__)
  switched_from = &from;
  __sanitizer_start_switch_fiber(&from.fake_stack_, to.stack_bottom_, to.stack_bytes_);
#endif
#if defined(DSA_THREAD_SANITIZER)
  __tsan_switch_to_fiber(to.sanitizer_fiber_, synchronise ? 0 : __tsan_switch_to_fiber_no_sync);
#endif
  dsa_fiber_swap(&from.stack_pointer_, to.stack_pointer_);
#if defined(__SANITIZE_ADDRESS__)
  // Back again: `switched_from` is whoever resumed us. The scheduler's own stack is learnt here.
  __sanitizer_finish_switch_fiber(from.fake_stack_, &switched_from->stack_bottom_, &switched_from->stack_bytes_);
#endif
}

void Fiber::entered() {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(nullptr, &switched_from->stack_bottom_, &switched_from->stack_bytes_);
#endif
}

}  // namespace dsa::emulator

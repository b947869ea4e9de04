// The emulator under the address sanitizer: what its stacks leave behind.
#include <doctest/doctest.h>

#include "cuda/device/emulator/fiber.hpp"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>

TEST_CASE("red zones on a stack do not outlive its memory") {
  char* zone;
  {
    dsa::emulator::StackPool pool;
    pool.reserve(2);
    zone = pool.top(0) - 64;
    __asan_poison_memory_region(zone, 64);  // as a frame does that never returns
    REQUIRE(__asan_region_is_poisoned(zone, 64) == zone);
    SUBCASE("the pool grows") {
      pool.reserve(3);
      CHECK(__asan_region_is_poisoned(zone, 64) == nullptr);
      __asan_poison_memory_region(pool.top(2) - 64, 64);
      zone = pool.top(2) - 64;
    }
    SUBCASE("the pool ends") {}
  }
  CHECK(__asan_region_is_poisoned(zone, 64) == nullptr);
}
#endif

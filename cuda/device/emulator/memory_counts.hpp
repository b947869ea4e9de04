/// @file memory_counts.hpp
/// The tally behind memory_counts() and bank_conflicts(). Internal to memory.cpp.
#pragma once

#include <cstddef>
#include <cstdint>

#include "memory.hpp"

namespace dsa::emulator {

void count_global(uintptr_t address, std::size_t bytes, Access::Kind kind);
void count_shared(std::size_t bytes, Access::Kind kind);
/// One lane's part in an instruction of its warp on shared memory.
void count_lane(std::size_t warp, unsigned lane, std::size_t offset, std::size_t bytes, const void* pc);
/// No lane of these warps comes any more.
void end_lanes(std::size_t first_warp, std::size_t warps);

}  // namespace dsa::emulator

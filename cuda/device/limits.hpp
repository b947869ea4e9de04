/// @file limits.hpp
/// What a block may have on Hopper (CUDA C++ Programming Guide, table of compute capabilities, 9.0).
#pragma once

#include <cstddef>

namespace dsa {

/// Largest dynamic shared memory of one block: 227 KiB.
inline constexpr std::size_t kMaxSharedMemory = 227 * 1024;

/// Whether `blocks` of so much dynamic shared memory fit on an SM, which has 228 KiB; 1 KiB of each block is the system's.
static constexpr bool fit_on_sm(std::size_t bytes, int blocks) { return bytes <= 228 * 1024 / std::size_t(blocks) - 1024; }

}  // namespace dsa

/// @file limits.hpp
/// What a block may have on Hopper (CUDA C++ Programming Guide, table of compute capabilities, 9.0).
#pragma once

#include <cstddef>

namespace dsa {

/// Largest dynamic shared memory of one block: 227 KiB.
inline constexpr std::size_t kMaxSharedMemory = 227 * 1024;

}  // namespace dsa

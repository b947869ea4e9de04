/// @file machine_gpu.hpp
/// The GPU half of `open` (execute.hpp): machine_gpu.cpp with CUDA, machine_gpu_absent.cpp without.
#pragma once

#include "execute.hpp"

namespace dsa::harness {

/// "" or why no kernel can run on a GPU here.
std::string gpu_unavailable();
std::unique_ptr<Machine> open_gpu();

/// Overwrites all of every SM's shared memory with 0xff bytes; returns when done. Throws on a CUDA error.
void poison_gpu_shared_memory(void* stream);

}  // namespace dsa::harness

/// @file cuda_check.hpp
/// CUDA runtime errors as exceptions, for host code.
#pragma once

#include <cuda_runtime_api.h>

#include <stdexcept>
#include <string>

namespace dsa::harness {

/// Throws std::runtime_error "call: name (text)" unless `error` is cudaSuccess.
inline void cuda_check(cudaError_t error, const char* call) {
  if (error == cudaSuccess) return;
  throw std::runtime_error(std::string(call) + ": " + cudaGetErrorName(error) + " (" +
                           cudaGetErrorString(error) + ")");
}
#define DSA_CUDA_CHECK(call) ::dsa::harness::cuda_check((call), #call)

}  // namespace dsa::harness

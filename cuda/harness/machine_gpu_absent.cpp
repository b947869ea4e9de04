#include "machine_gpu.hpp"

namespace dsa::harness {

std::string gpu_unavailable() {
  return "this build has no CUDA (see the line 'CUDA: OFF' of the CMake output)";
}
std::unique_ptr<Machine> open_gpu() {
  throw std::runtime_error(gpu_unavailable());
}
void poison_gpu_shared_memory(void*) {}

}  // namespace dsa::harness

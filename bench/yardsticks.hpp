/// @file yardsticks.hpp
/// What the machine itself can do, measured like a kernel: matrix products of the vendor's library and a
/// copy. Needs CUDA.
#pragma once

#include <memory>

#include "measure.hpp"
#include "work.hpp"

namespace dsa::bench {

/// A yardstick with its buffers on the GPU.
class Yardstick {
 public:
  virtual ~Yardstick() = default;
  virtual int enqueue(void* stream) = 0;  ///< one launch; a cudaError_t
  virtual double amount() const = 0;      ///< FLOP, or bytes read plus bytes written, of one launch
};

/// Makes a yardstick, inputs random, nearly N(0, 1).
///
/// cuBLASLt bf16   D = A^T B, 8192^3, float32 accumulation, bf16 output.
/// cuBLASLt fp8    The same with e4m3 inputs and without scales. Fast accumulation is on, which is not
///                 cuBLASLt's default: sums stay in the tensor cores instead of being promoted to float32 in
///                 between. That is the fastest the chip goes, and how our FP8 kernels accumulate.
/// copy            2 GiB from device memory to device memory.
///
/// Of the algorithms that cuBLASLt proposes, the fastest one here is used.
/// @return null for a matrix product in a build without cuBLASLt
std::unique_ptr<Yardstick> make_yardstick(YardstickKind kind, void* stream);

/// make_yardstick for the matrix products; null in a build without cuBLASLt.
std::unique_ptr<Yardstick> make_matrix_product(bool fp8, void* stream);

}  // namespace dsa::bench

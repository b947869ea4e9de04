/// @file tensor.hpp
/// Host tensors by name, and the safetensors files they come from and go to.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "../../reference/numeric.hpp"

namespace dsa::harness {

enum class DType { kF32, kI32, kBF16, kE4M3 };

std::size_t size_of(DType dtype);     ///< bytes of one element
const char* dtype_name(DType dtype);  ///< the safetensors spelling: "F32", "I32", "BF16", "F8_E4M3"

/// Product of the extents; throws std::length_error when it cannot be the size of a tensor.
int64_t element_count(const std::vector<int64_t>& shape);

/// A file, tensor or option that does not follow the contract: exit status 2. The message names the file,
/// the tensor and what is wrong with it.
struct BadInput : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// A dense row-major host tensor.
struct Tensor {
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  std::vector<std::byte> bytes;  ///< elements() * size_of(dtype) bytes

  Tensor() = default;
  Tensor(DType dtype, std::vector<int64_t> shape);  ///< zero-filled

  int64_t elements() const;
  /// Typed view of the storage; T must be the C++ type of dtype (float, int32_t, bf16, e4m3).
  template <class T>
  T* data() {
    return reinterpret_cast<T*>(bytes.data());
  }
  template <class T>
  const T* data() const {
    return reinterpret_cast<const T*>(bytes.data());
  }
  /// Element as double, whatever the type.
  double at(int64_t flat_index) const;
};

using TensorMap = std::map<std::string, Tensor>;

struct TensorFile {
  TensorMap tensors;
  std::map<std::string, std::string> metadata;
};

/// Reads a safetensors file: 8 bytes little-endian header length, JSON header, raw data.
/// Throws BadInput unless every offset lies inside the file, spans do not overlap, every span has exactly the
/// bytes of its shape and dtype, and every dtype is one of DType's.
TensorFile read_safetensors(const std::filesystem::path& path);

/// Writes the file under a temporary name and renames it: a failure leaves nothing behind.
void write_safetensors(const std::filesystem::path& path, const TensorFile& file);

/// "[4, 8, 512]".
std::string shape_text(const std::vector<int64_t>& shape);

}  // namespace dsa::harness

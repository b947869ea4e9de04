/// @file topk_sample.hpp
/// Where a bound for the k-th largest is guessed from: a group of 8 columns in each of 512 parts of a row. For kernels, and for
/// tests that want to mislead them.
#pragma once

#include <cstdint>

namespace dsa {

constexpr int kSampleParts = 512;

/// The group that stands for a part, of a row of so many groups: somewhere in the part, by a multiplication with 2^32 over the
/// golden ratio.
// [sampled_group]
static constexpr uint32_t sampled_group(uint32_t part, uint32_t groups) {
  const uint32_t begin = uint32_t(uint64_t(part) * groups / kSampleParts);
  const uint32_t end = uint32_t(uint64_t(part + 1) * groups / kSampleParts);
  return begin + uint32_t(uint64_t(part * 0x9e3779b1u) * (end - begin) >> 32);
}
// [sampled_group]

}  // namespace dsa

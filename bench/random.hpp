/// @file random.hpp
/// Random numbers of a seed and a position, so that any number of threads fills a tensor alike.
#pragma once

#include <cmath>
#include <cstdint>

namespace dsa::bench {

/// 64 well-mixed bits (the finaliser of SplitMix64, Steele et al. 2014).
constexpr uint64_t random_bits(uint64_t seed, uint64_t position) {
  uint64_t x = seed * 0x9e3779b97f4a7c15u + position;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

/// Nearly N(0, 1): the sum of four uniform numbers, scaled to variance 1; never beyond 3.5.
inline float random_normal(uint64_t seed, uint64_t position) {
  const uint64_t bits = random_bits(seed, position + 1);
  double sum = 0;  // of four numbers in [0, 65535], each with mean 32767.5 and variance (65536^2 - 1) / 12
  for (int shift = 0; shift < 64; shift += 16) sum += double(bits >> shift & 0xffff);
  return float((sum - 4 * 32767.5) / (65536 * std::sqrt(4.0 / 12)));
}

}  // namespace dsa::bench

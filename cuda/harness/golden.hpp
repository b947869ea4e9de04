/// @file golden.hpp
/// Files that carry their expected results, as tensors called want_*.
#pragma once

#include <optional>

#include "problem.hpp"

namespace dsa::harness {

/// One problem of a file with the results that it must have.
struct GoldenProblem {
  std::string part;  ///< which part of the file, for files that hold several problems; else empty
  Problem problem;
  TensorMap want;  ///< the want_* tensors that belong to it; empty: judge by the reference
};

/// The problems that a file holds: one, except for quantisation, where `rows` is quantised with both kinds of
/// scale (want_bytes, want_scale and want_bytes_pow2, want_scale_pow2), `x` with none (want_saturated), and
/// want_decode_table lists the values of all 256 bytes.
/// @param stage taken from the file's tensors when not given
/// @param options scalars that override the file's metadata
std::vector<GoldenProblem> read_golden(const std::filesystem::path& path, std::optional<Stage> stage,
                                       const std::map<std::string, std::string>& options);

}  // namespace dsa::harness

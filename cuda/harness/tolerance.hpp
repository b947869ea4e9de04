/// @file tolerance.hpp
/// How far each output may be from the float64 reference: one table, with the reason for every number.
#pragma once

#include "check.hpp"

namespace dsa::harness {

/// Tolerance of one output of one stage for a kernel of the given accuracy. What depends on the data of a
/// problem (bounds, noise, slack) is added by the judge.
/// @param fp8 whether the problem's inputs are e4m3
Tolerance tolerance_of(Stage stage, const std::string& output, Accuracy accuracy, bool fp8);

// ---- Numbers that multiply quantities taken from the data ------------------------------------------------

/// Indexer: |error| <= this * k_scale * sum_h |w_h| |q_h| |k|. Hopper's e4m3 products are summed with about
/// 13 bits below the largest term; float32 kernels have 23.
inline constexpr double kIndexerBoundFp8 = 0x1p-12;
inline constexpr double kIndexerBoundF32 = 0x1p-18;

/// Rounding of a float32 sum relative to the sum of its absolute terms: a few units in the last place (2^-24
/// each), and room for any order of summation.
inline constexpr double kF32Sum = 0x1p-20;

/// A logit l carries an error of about kF32Sum * |l|, which exp turns into a relative error of the same size.
/// It is felt from |l| ~ 1000. Beyond the limit, tests use data whose logits are exact in float32.
inline constexpr double kLargestLogitSlack = 0.02;

/// Below this a float32 kernel may flush to zero.
inline constexpr double kNegligible = 1e-30;

}  // namespace dsa::harness

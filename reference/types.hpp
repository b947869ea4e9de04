/// @file types.hpp
/// The few Eigen types of the reference. Everything is float64; inputs are converted exactly on loading.
#pragma once

#include <Eigen/Core>
#include <cstdint>
#include <limits>

namespace dsa::reference {

/// Row-major, as the tensors are: `Matrix(row, column)`.
using Matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using Vector = Eigen::VectorXd;
using RowVector = Eigen::RowVectorXd;

inline constexpr double kInfinity = std::numeric_limits<double>::infinity();

}  // namespace dsa::reference

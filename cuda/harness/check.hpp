/// @file check.hpp
/// Judging outputs: NaN-strict, row by row, with coordinates and a map of where the errors are.
#pragma once

#include <memory>

#include "execute.hpp"

namespace dsa::harness {

/// Width of a row of a tensor of this shape: the last axis, but every element of a vector is a row of its
/// own.
int64_t row_width(const std::vector<int64_t>& shape);

/// What an output must be. Rows are the last axis; `rows` lists the flat row numbers that `values` covers
/// (empty means all rows in order), so that a large problem can be judged on a sample.
struct Expected {
  struct Span {
    int64_t begin, end;
  };
  std::string name;
  std::vector<int64_t> shape;  ///< of the whole tensor
  std::vector<int64_t> rows;
  std::vector<double> values;
  std::vector<Span> windows;  ///< per row, the columns that are compared; empty means all columns
};

/// How far an output may be from what is expected. A NaN on either side never passes by arithmetic.
struct Tolerance {
  // Element by element: |got - want| <= atol + rtol |want| + rms * (root mean square of the expected row).
  double atol = 0;
  double rtol = 0;
  double rms = 0;
  // Row by row; 0 switches a test off.
  double row_distance = 0;      ///< 1 - 2<a,b> / (|a|^2 + |b|^2) <= row_distance
  double row_error = 0;         ///< |got - want| <= row_error |want|
  bool elementwise = true;      ///< false: only the row tests
  bool exact_zero_rows = true;  ///< a row whose expected values are all zero must be exactly zero
  bool exact = false;           ///< equal values, zeros of equal sign; overrides everything else
  std::vector<int64_t> splits;  ///< columns that cut a row into parts, each judged as a row of its own
  // What the data of a problem add; empty means nothing.
  std::vector<double> element_bound;  ///< per element, added to the element-wise bound
  std::vector<double> noise;      ///< per element, absolute error that rounding alone explains; in both tests
  std::vector<double> row_slack;  ///< per row, added to rtol and rms; relative error of the row likewise
};

struct Verdict {
  bool passed = true;
  std::string message;  ///< worst error, first wrong coordinates, 16x16 map; empty when passed
};

/// Compares one tensor. Positions of NaN, +inf and -inf must agree exactly; a row (or part) whose expected
/// values are all zero must be exactly zero unless the tolerance says otherwise or `noise` allows for
/// rounding there.
Verdict compare(const Tensor& got, const Expected& want, const Tolerance& tolerance);

/// Judges a stage's outputs against the float64 reference, on all rows or on `sample_rows` of them.
/// Top-k is judged as the contract says: exact multiset of values, distinct columns in the window, -1 last.
class Judge {
 public:
  /// Computes the reference once; judging many runs of many rungs is then cheap. The problem must outlive it.
  /// @param sample_rows 0 for all queries, else that many, always with the first and the last.
  explicit Judge(const Problem& problem, int64_t sample_rows = 0, uint64_t seed = 1);
  /// From a file's want_* tensors instead of the reference. Throws BadInput when they do not fit the problem.
  Judge(const Problem& problem, const TensorMap& want, const std::string& source = "file");
  ~Judge();
  Verdict judge(const TensorMap& outputs, Accuracy accuracy) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

struct CheckOptions {
  int repeats = 3;  ///< launches on one problem, outputs re-poisoned each time; a repeatable rung must
                    ///< give the same bits every time, any rung must be right every time
};

struct CheckResult {
  Status status = Status::kPassed;
  std::string message;
};

/// The whole check of one rung on one problem. Between the first launch and the second, the same buffers are
/// given inputs that select nothing, for which every output is known: a kernel that returns an earlier result
/// fails.
CheckResult check_rung(const RungEntry& rung, Machine& machine, const Problem& problem, const Judge& judge,
                       const CheckOptions& options = {});

/// What the reference counts as when it is judged itself.
Accuracy reference_accuracy(Stage stage);

}  // namespace dsa::harness

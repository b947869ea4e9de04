/// @file expectation.hpp
/// What the outputs of a problem must be, and how much of an error its data excuse. Internal to Judge.
#pragma once

#include "check.hpp"

namespace dsa::harness {

/// One output.
struct Expectation {
  Expected want;
  // See Tolerance; `element_scale` is multiplied by a factor that depends on the kernel's accuracy.
  std::vector<double> element_scale;
  std::vector<double> noise;
  std::vector<double> row_slack;
};

/// Flat query numbers [0, count): all of them in order when n is 0, else n of them, always the first and the
/// last.
std::vector<int64_t> sample(int64_t count, int64_t n, uint64_t seed);

/// The (query, head) rows of these queries, all h_q heads each.
std::vector<int64_t> heads_of(const std::vector<int64_t>& queries, int h_q);

/// An output that covers the given rows of a tensor with `values` still to be filled in.
Expectation expectation(std::string name, std::vector<int64_t> shape, std::vector<int64_t> rows);

/// min(kLargestLogitSlack, kF32Sum * |logit|), 0 for infinities.
double logit_slack(double logit);

std::vector<Expectation> expect_quantize(const Problem& problem, int64_t n, uint64_t seed);
std::vector<Expectation> expect_indexer(const Problem& problem, int64_t n, uint64_t seed);
std::vector<Expectation> expect_fwd(const Problem& problem, int64_t n, uint64_t seed);
std::vector<Expectation> expect_bwd(const Problem& problem, int64_t n, uint64_t seed);

/// |k_scale[j]| |k[j]| for every column, and sum_h |w[h]| |q[h]| of a query: the size of what a logit is a sum of.
std::vector<double> key_sizes(const IndexerArgs& args);
double query_size(const IndexerArgs& args, int64_t query);

// What the data excuse when the expected values come from a file and cover all rows.
void add_excuses_indexer(const Problem& problem, Expectation& logits);
void add_excuses_fwd(const TensorMap& want, Expectation& output);
void add_excuses_bwd(const Problem& problem, Expectation& output);

/// The selected values of some rows, judged without regard to order or to the choice inside a tie.
class TopkExpectation {
 public:
  /// From the reference.
  TopkExpectation(const Problem& problem, int64_t n, uint64_t seed);
  /// From want_values_desc [rows, topk] and want_count [rows].
  TopkExpectation(const Problem& problem, const TensorMap& want, const std::string& source);
  Verdict judge(const Tensor& indices) const;

 private:
  std::string row_error(int64_t at, const int32_t* columns) const;

  const Problem& problem_;
  TopkArgs args_;  ///< with host pointers
  std::vector<int64_t> rows_;
  std::vector<std::vector<float>> values_;   ///< per row, descending
  std::vector<std::vector<int32_t>> exact_;  ///< per row in the deterministic mode, else empty
};

/// What is known of a query whose columns are selected by score.
struct ScoredWindow {
  int64_t query = 0, begin = 0, end = 0;  ///< the window, clamped
  std::vector<double> logits, scale;      ///< of its columns; empty when it is selected whole
};

/// Columns selected by score, judged with the error that a logit may have.
class IndexTopkExpectation {
 public:
  IndexTopkExpectation(const Problem& problem, int64_t n, uint64_t seed);
  Verdict judge(const Tensor& indices, Accuracy accuracy) const;

 private:
  std::string row_error(const ScoredWindow& row, const int32_t* columns, double bound) const;

  IndexTopkArgs args_;  ///< with host pointers
  std::vector<ScoredWindow> rows_;
};

}  // namespace dsa::harness

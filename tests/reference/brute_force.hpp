/// @file brute_force.hpp
/// The stages once more, as plain loops over scalars, written from the contract without any code of the
/// reference: own decoding, own rule for valid slots, no Eigen.
#pragma once

#include <vector>

#include "reference/contracts.hpp"

namespace dsa::test {

double value_of(bf16 x);
double value_of(e4m3 x);
template <class T>
std::vector<double> values_of(const std::vector<T>& tensor) {
  std::vector<double> values;
  for (T x : tensor) values.push_back(value_of(x));
  return values;
}

std::vector<double> brute_indexer_row(const IndexerArgs& args, int64_t query);

/// One head of one query.
struct BruteRow {
  std::vector<double> out;  ///< [512]
  double lse;
  double max_logit;
};

/// The q and kv of `args` as float64, dequantised.
std::vector<double> brute_q(const SparseMlaFwdArgs& args);
std::vector<double> brute_kv(const SparseMlaFwdArgs& args);

bool brute_valid(const SparseMlaFwdArgs& args, int64_t batch, int64_t query, int64_t slot, int64_t row);

/// Forward of one head, from float64 tensors: `args` gives sizes, scalars, indices, topk_length and sink
/// only.
BruteRow brute_forward(const SparseMlaFwdArgs& args, const std::vector<double>& q,
                       const std::vector<double>& kv, int64_t batch, int64_t query, int64_t head);

struct BruteGradient {
  std::vector<double> dq, dkv, delta;
};

/// Backward of everything, from the tensors that the arguments point to. With `exact_out`, delta comes from the
/// float64 output of the forward instead of the rounded one in args.out: then this is the exact gradient.
BruteGradient brute_backward(const SparseMlaBwdArgs& args, bool exact_out = false);

/// The forward arguments with the same sizes, scalars, indices, topk_length and sink.
SparseMlaFwdArgs forward_args(const SparseMlaBwdArgs& args);

/// Fills `out` and `lse` of a forward problem's arguments.
void brute_forward_outputs(const SparseMlaFwdArgs& args);

/// Largest |got - want| / (1 + |want|); infinite unless NaN and infinities stand in the same places.
double worst_error(const double* got, const std::vector<double>& want);
double worst_error(const std::vector<double>& got, const std::vector<double>& want);

}  // namespace dsa::test

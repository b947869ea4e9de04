#include "expectation.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <set>

#include "../../reference/indexer.hpp"
#include "../../reference/load.hpp"
#include "../../reference/quantize.hpp"
#include "../../reference/sparse_mla_fwd.hpp"
#include "../../reference/window.hpp"
#include "parallel.hpp"
#include "tolerance.hpp"

namespace dsa::harness {

std::vector<int64_t> sample(int64_t count, int64_t n, uint64_t seed) {
  std::vector<int64_t> all(std::size_t(n > 0 ? std::min(n, count) : count));
  if (int64_t(all.size()) == count) {
    std::iota(all.begin(), all.end(), 0);
    return all;
  }
  std::set<int64_t> chosen{0, count - 1};
  std::mt19937_64 random(seed);
  while (int64_t(chosen.size()) < n)
    chosen.insert(std::uniform_int_distribution<int64_t>(0, count - 1)(random));
  return {chosen.begin(), chosen.end()};
}

Expectation expectation(std::string name, std::vector<int64_t> shape, std::vector<int64_t> rows) {
  Expectation e;
  e.want.name = std::move(name);
  e.want.values.resize(rows.size() * std::size_t(row_width(shape)));
  e.want.shape = std::move(shape);
  e.want.rows = std::move(rows);
  return e;
}

double logit_slack(double logit) {
  return std::isfinite(logit) ? std::min(kLargestLogitSlack, kF32Sum * std::fabs(logit)) : 0;
}

// ---- Quantize --------------------------------------------------------------------------------------------

std::vector<Expectation> expect_quantize(const Problem& problem, int64_t n, uint64_t seed) {
  const auto args = std::get<QuantizeArgs>(host_args(problem));
  const std::vector<int64_t> rows = sample(args.rows, n, seed);
  const Tensor& x = problem.inputs.at("x");
  Expectation bytes = expectation("bytes", {args.rows, args.n}, rows);
  Expectation scale = expectation("scale", {args.rows}, rows);
  parallel_for(int64_t(rows.size()), 64, [&](int64_t begin, int64_t end) {
    std::vector<float> row(std::size_t(args.n));
    for (int64_t i = begin; i < end; ++i) {
      for (int64_t j = 0; j < args.n; ++j)
        row[std::size_t(j)] = float(x.at(rows[std::size_t(i)] * args.n + j));
      const reference::QuantizedRow quantized = reference::quantize_row(row, args.mode);
      for (int64_t j = 0; j < args.n; ++j) {
        bytes.want.values[std::size_t(i * args.n + j)] = to_float(quantized.bytes[std::size_t(j)]);
      }
      scale.want.values[std::size_t(i)] = quantized.scale;
    }
  });
  return {std::move(bytes), std::move(scale)};
}

// ---- Indexer ---------------------------------------------------------------------------------------------

namespace {

double norm(const reference::Matrix& row) {
  const double length = row.norm();
  return std::isfinite(length) ? length : 0;  // a NaN byte makes the product NaN, and max(NaN, 0) exactly 0
}

}  // namespace

std::vector<double> key_sizes(const IndexerArgs& args) {
  std::vector<double> sizes(std::size_t(args.s_kv));
  for (int64_t j = 0; j < args.s_kv; ++j) {
    sizes[std::size_t(j)] = std::fabs(args.k_scale[j]) * norm(reference::load_rows(args.k, j, 1, args.d_i));
  }
  return sizes;
}

double query_size(const IndexerArgs& args, int64_t query) {
  double size = 0;
  for (int64_t h = query * args.h_i; h < (query + 1) * args.h_i; ++h) {
    size += std::fabs(args.weights[h]) * norm(reference::load_rows(args.q, h, 1, args.d_i));
  }
  return size;
}

namespace {

void set_scales(const IndexerArgs& args, Expectation& logits) {
  const std::vector<double> keys = key_sizes(args);
  logits.element_scale.resize(logits.want.values.size());
  for (std::size_t i = 0; i < logits.want.values.size() / std::max<std::size_t>(1, keys.size()); ++i) {
    const double size = query_size(args, logits.want.rows.empty() ? int64_t(i) : logits.want.rows[i]);
    for (std::size_t j = 0; j < keys.size(); ++j) logits.element_scale[i * keys.size() + j] = size * keys[j];
  }
}

/// In the raw mode only the window is compared.
void set_windows(const IndexerArgs& args, Expectation& logits) {
  if (args.clean) return;
  for (std::size_t i = 0; i < logits.want.values.size() / std::size_t(std::max(1, args.s_kv)); ++i) {
    const int64_t query = logits.want.rows.empty() ? int64_t(i) : logits.want.rows[i];
    const reference::Window window = reference::clamp_window(args.ks[query], args.ke[query], args.s_kv);
    logits.want.windows.push_back({window.begin, window.end});
  }
}

}  // namespace

std::vector<Expectation> expect_indexer(const Problem& problem, int64_t n, uint64_t seed) {
  const auto args = std::get<IndexerArgs>(host_args(problem));
  Expectation logits = expectation("logits", {args.s_q, args.s_kv}, sample(args.s_q, n, seed));
  parallel_for(int64_t(logits.want.rows.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const reference::RowVector row = reference::indexer_row(args, logits.want.rows[std::size_t(i)]);
      std::copy(row.begin(), row.end(), logits.want.values.begin() + i * args.s_kv);
    }
  });
  set_scales(args, logits);
  set_windows(args, logits);
  return {std::move(logits)};
}

void add_excuses_indexer(const Problem& problem, Expectation& logits) {
  const auto args = std::get<IndexerArgs>(host_args(problem));
  set_scales(args, logits);
  set_windows(args, logits);
}

std::vector<int64_t> heads_of(const std::vector<int64_t>& queries, int h_q) {
  std::vector<int64_t> heads;
  for (int64_t query : queries) {
    for (int64_t h = 0; h < h_q; ++h) heads.push_back(query * h_q + h);
  }
  return heads;
}

// ---- Sparse MLA forward ----------------------------------------------------------------------------------

std::vector<Expectation> expect_fwd(const Problem& problem, int64_t n, uint64_t seed) {
  const auto args = std::get<SparseMlaFwdArgs>(host_args(problem));
  const std::vector<int64_t> queries = sample(int64_t(args.b) * args.s_q, n, seed);
  const std::vector<int64_t> heads = heads_of(queries, args.h_q);
  Expectation out = expectation("out", {args.b, args.s_q, args.h_q, kDimV}, heads);
  Expectation lse = expectation("lse", {args.b, args.s_q, args.h_q}, queries);
  Expectation max_logits = expectation("max_logits", {args.b, args.s_q, args.h_q}, queries);
  out.row_slack.resize(heads.size());
  parallel_for(int64_t(queries.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t query = queries[std::size_t(i)];
      const reference::Attention a =
          reference::sparse_mla_fwd_query(args, query / args.s_q, query % args.s_q);
      std::copy_n(a.out.data(), a.out.size(), out.want.values.begin() + i * args.h_q * kDimV);
      std::copy(a.lse.begin(), a.lse.end(), lse.want.values.begin() + i * args.h_q);
      std::copy(a.max_logits.begin(), a.max_logits.end(), max_logits.want.values.begin() + i * args.h_q);
      std::transform(a.max_logits.begin(), a.max_logits.end(), out.row_slack.begin() + i * args.h_q,
                     logit_slack);
    }
  });
  std::vector<Expectation> all;
  all.push_back(std::move(out));
  all.push_back(std::move(lse));
  all.push_back(std::move(max_logits));
  return all;
}

void add_excuses_fwd(const TensorMap& want, Expectation& output) {
  const auto logits = want.find("want_max_logits");
  if (output.want.name != "out" || logits == want.end()) return;
  for (int64_t i = 0; i < logits->second.elements(); ++i) {
    output.row_slack.push_back(logit_slack(logits->second.at(i)));
  }
  output.row_slack.resize(output.want.values.size() / kDimV);
}

}  // namespace dsa::harness

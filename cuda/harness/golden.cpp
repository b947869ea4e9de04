#include "golden.hpp"

#include <cmath>

namespace dsa::harness {

namespace {

using Scalars = std::map<std::string, std::string>;

TensorMap wanted(const TensorMap& tensors) {
  TensorMap want;
  for (const auto& [name, tensor] : tensors) {
    if (name.rfind("want_", 0) == 0) want.emplace(name, tensor);
  }
  return want;
}

/// Encoding the decoded values must give back the bytes 0 to 255: the table is judged through the encoder.
GoldenProblem decode_table_problem(const Tensor& table, const std::string& source) {
  if (table.dtype != DType::kF32 || table.elements() != 256) {
    throw BadInput(source + ": tensor 'want_decode_table': expected F32 of shape [256], got " +
                   dtype_name(table.dtype) + " of shape " + shape_text(table.shape));
  }
  Tensor bytes(DType::kE4M3, {1, 256});
  for (int code = 0; code < 256; ++code) {
    bytes.data<e4m3>()[code] = {uint8_t(code)};
    const double want = table.at(code), got = bytes.at(code);
    if (!(want == got || (std::isnan(want) && std::isnan(got)))) {
      throw BadInput(source + ": tensor 'want_decode_table': byte " + std::to_string(code) + " is " +
                     std::to_string(want) + " there but " + std::to_string(got) + " here");
    }
  }
  Problem problem = make_problem(Stage::kQuantize, {{"x", table}}, {{"scale", "none"}}, source);
  return {"decode table", std::move(problem), {{"want_bytes", std::move(bytes)}}};
}

std::vector<GoldenProblem> quantize_problems(const TensorMap& tensors, const Scalars& scalars,
                                             const std::string& source) {
  std::vector<GoldenProblem> problems;
  const auto add = [&](const char* part, const char* input, const Scalars& modes,
                       std::initializer_list<std::pair<const char*, const char*>> results) {
    TensorMap want;
    for (const auto& [name, meaning] : results) {
      if (tensors.count(name)) want.emplace(meaning, tensors.at(name));
    }
    if (!tensors.count(input) || want.empty()) return;
    Problem problem = make_problem(Stage::kQuantize, {{"x", tensors.at(input)}}, modes, source);
    problems.push_back({part, std::move(problem), std::move(want)});
  };
  add("rows, scale=row", "rows", {{"scale", "row"}},
      {{"want_bytes", "want_bytes"}, {"want_scale", "want_scale"}});
  add("rows, scale=row_pow2", "rows", {{"scale", "row_pow2"}},
      {{"want_bytes_pow2", "want_bytes"}, {"want_scale_pow2", "want_scale"}});
  add("x, scale=none", "x", {{"scale", "none"}}, {{"want_saturated", "want_bytes"}});
  if (tensors.count("want_decode_table")) {
    problems.push_back(decode_table_problem(tensors.at("want_decode_table"), source));
  }
  if (problems.empty()) {
    problems.push_back({"", make_problem(Stage::kQuantize, tensors, scalars, source), wanted(tensors)});
  }
  return problems;
}

}  // namespace

std::vector<GoldenProblem> read_golden(const std::filesystem::path& path, std::optional<Stage> stage,
                                       const Scalars& options) {
  const std::string source = path.string();
  TensorFile file = read_safetensors(path);
  Scalars scalars = options;
  scalars.insert(file.metadata.begin(), file.metadata.end());  // keeps what options gave
  const bool of_quantize = file.tensors.count("want_decode_table") || file.tensors.count("rows");
  if (!stage) stage = of_quantize ? Stage::kQuantize : detect_stage(file.tensors, source);
  if (*stage == Stage::kQuantize) return quantize_problems(file.tensors, scalars, source);

  TensorMap want = wanted(file.tensors);
  std::vector<GoldenProblem> problems;
  problems.push_back({"", make_problem(*stage, std::move(file.tensors), scalars, source), std::move(want)});
  return problems;
}

}  // namespace dsa::harness

#include "tensor.hpp"

#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <system_error>

static_assert(std::endian::native == std::endian::little, "safetensors data is little-endian");

namespace dsa::harness {
namespace fs = std::filesystem;
using nlohmann::json;

namespace {

/// The limit of the reference safetensors reader.
constexpr uint64_t kMaxHeaderBytes = 100'000'000;
/// A header is an object of objects of arrays; anything deeper is malformed.
constexpr int kMaxHeaderDepth = 3;

constexpr DType kDTypes[] = {DType::kF32, DType::kI32, DType::kBF16, DType::kE4M3};

[[noreturn]] void bad(const std::string& file, const std::string& what) {
  throw BadInput(file + ": " + what);
}

/// Product of the extents, or nullopt when it (or the product of the non-zero ones) leaves 63 bits.
std::optional<int64_t> checked_elements(const std::vector<int64_t>& shape) {
  int64_t product = 1;
  bool empty = false;
  for (int64_t extent : shape) {
    if (extent == 0) {
      empty = true;
    } else if (__builtin_mul_overflow(product, extent, &product)) {
      return std::nullopt;
    }
  }
  return empty ? 0 : product;
}

/// Parses the header; duplicate keys and excessive depth are errors, which nlohmann-json alone would accept.
json parse_header(const std::string& text, const std::string& file) {
  std::vector<std::set<std::string>> keys;  // of the objects that are open
  const auto watch = [&](int depth, json::parse_event_t event, json& value) {
    if (depth > kMaxHeaderDepth) bad(file, "header: nested too deeply");
    if (event == json::parse_event_t::object_start) keys.emplace_back();
    if (event == json::parse_event_t::object_end) keys.pop_back();
    if (event == json::parse_event_t::key && !keys.back().insert(value.get<std::string>()).second) {
      bad(file, "header: duplicate key " + value.dump());
    }
    return true;
  };
  try {
    json header = json::parse(text, watch);
    if (!header.is_object())
      bad(file, "header: expected a JSON object, got " + std::string(header.type_name()));
    return header;
  } catch (const json::exception& error) {
    bad(file, std::string("header is not valid JSON: ") + error.what());
  }
}

/// A non-negative integer that fits int64_t.
int64_t as_extent(const json& value, const std::string& where, const char* what) {
  if (!value.is_number_unsigned() || value.get<uint64_t>() > uint64_t(std::numeric_limits<int64_t>::max())) {
    throw BadInput(where + what + " must be non-negative integers, got " + value.dump());
  }
  return value.get<int64_t>();
}

struct Entry {
  std::string name;
  DType dtype;
  std::vector<int64_t> shape;
  int64_t begin;
  int64_t end;
};

/// Reads one tensor's description and checks it against itself and the size of the data part.
Entry parse_entry(const std::string& file, const std::string& name, const json& description,
                  int64_t data_bytes) {
  const std::string where = file + ": tensor '" + name + "': ";
  if (!description.is_object()) throw BadInput(where + "its description is not a JSON object");
  for (const char* key : {"dtype", "shape", "data_offsets"}) {
    if (!description.contains(key)) throw BadInput(where + "has no '" + key + "'");
  }
  const json& dtype = description["dtype"];
  const json& shape = description["shape"];
  const json& offsets = description["data_offsets"];
  if (!dtype.is_string()) throw BadInput(where + "dtype must be a string, got " + dtype.dump());
  if (!shape.is_array()) throw BadInput(where + "shape must be an array, got " + shape.dump());
  if (!offsets.is_array() || offsets.size() != 2) {
    throw BadInput(where + "data_offsets must be two integers, got " + offsets.dump());
  }

  Entry entry{name, DType::kF32, {}, 0, 0};
  const auto* known = std::find_if(std::begin(kDTypes), std::end(kDTypes),
                                   [&](DType d) { return dtype_name(d) == dtype.get<std::string>(); });
  if (known == std::end(kDTypes)) {
    throw BadInput(where + "unsupported dtype " + dtype.dump() + " (known: F32, I32, BF16, F8_E4M3)");
  }
  entry.dtype = *known;
  for (const json& extent : shape) entry.shape.push_back(as_extent(extent, where, "shape: extents"));
  entry.begin = as_extent(offsets[0], where, "data_offsets");
  entry.end = as_extent(offsets[1], where, "data_offsets");

  const std::string span = "[" + std::to_string(entry.begin) + ", " + std::to_string(entry.end) + ")";
  if (entry.end < entry.begin) throw BadInput(where + "data_offsets " + span + " end before they begin");
  if (entry.end > data_bytes) {
    throw BadInput(where + "data_offsets " + span + " reach past the end of the file, which holds " +
                   std::to_string(data_bytes) + " bytes of data");
  }
  const std::optional<int64_t> elements = checked_elements(entry.shape);
  int64_t bytes = 0;
  if (!elements || __builtin_mul_overflow(*elements, int64_t(size_of(entry.dtype)), &bytes)) {
    throw BadInput(where + "shape " + shape_text(entry.shape) + " overflows 64 bits");
  }
  if (bytes != entry.end - entry.begin) {
    throw BadInput(where + "shape " + shape_text(entry.shape) + " of " + dtype_name(entry.dtype) + " needs " +
                   std::to_string(bytes) + " bytes, but data_offsets " + span + " hold " +
                   std::to_string(entry.end - entry.begin));
  }
  return entry;
}

/// Spans must follow one another without overlap or hole from the first to the last byte of the data, as the
/// format demands: every byte of the file then has one meaning.
void check_layout(const std::string& file, std::vector<Entry> entries, int64_t data_bytes) {
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  int64_t end = 0;
  std::string before = "the start of the data";
  for (const Entry& entry : entries) {
    if (entry.begin < end) bad(file, "tensor '" + entry.name + "': its data overlap those of " + before);
    if (entry.begin > end) {
      bad(file, "tensor '" + entry.name + "': " + std::to_string(entry.begin - end) +
                    " unused bytes between it and " + before);
    }
    end = entry.end;
    before = "tensor '" + entry.name + "'";
  }
  if (end != data_bytes) {
    bad(file, std::to_string(data_bytes - end) + " unused bytes after " + before);
  }
}

/// Removes the temporary file unless the write came to its end.
struct TemporaryFile {
  fs::path path;
  bool keep = false;
  ~TemporaryFile() {
    std::error_code ignored;
    if (!keep) fs::remove(path, ignored);
  }
};

std::string header_text(const TensorFile& file) {
  json header = json::object();
  if (!file.metadata.empty()) header["__metadata__"] = file.metadata;
  int64_t offset = 0;
  for (const auto& [name, tensor] : file.tensors) {
    const int64_t end = offset + int64_t(tensor.bytes.size());
    header[name] = {
        {"dtype", dtype_name(tensor.dtype)}, {"shape", tensor.shape}, {"data_offsets", {offset, end}}};
    offset = end;
  }
  std::string text = header.dump(-1, ' ', false, json::error_handler_t::replace);
  text.resize((text.size() + 7) / 8 * 8, ' ');  // the data then begin on an 8-byte boundary
  return text;
}

}  // namespace

std::size_t size_of(DType dtype) {
  switch (dtype) {
    case DType::kF32:
    case DType::kI32:
      return 4;
    case DType::kBF16:
      return 2;
    case DType::kE4M3:
      return 1;
  }
  return 0;
}

const char* dtype_name(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "F32";
    case DType::kI32:
      return "I32";
    case DType::kBF16:
      return "BF16";
    case DType::kE4M3:
      return "F8_E4M3";
  }
  return "?";
}

std::string shape_text(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (std::size_t i = 0; i < shape.size(); ++i) text += (i ? ", " : "") + std::to_string(shape[i]);
  return text + "]";
}

Tensor::Tensor(DType dtype, std::vector<int64_t> shape) : dtype(dtype), shape(std::move(shape)) {
  bytes.resize(std::size_t(elements()) * size_of(dtype));
}

int64_t element_count(const std::vector<int64_t>& shape) {
  const std::optional<int64_t> count = checked_elements(shape);
  if (!count || *count > std::numeric_limits<int64_t>::max() / 4) {
    throw std::length_error("a tensor of shape " + shape_text(shape) + " does not fit in memory");
  }
  return *count;
}

int64_t Tensor::elements() const {
  return element_count(shape);
}

double Tensor::at(int64_t flat_index) const {
  switch (dtype) {
    case DType::kF32:
      return data<float>()[flat_index];
    case DType::kI32:
      return data<int32_t>()[flat_index];
    case DType::kBF16:
      return to_float(data<bf16>()[flat_index]);
    case DType::kE4M3:
      return to_float(data<e4m3>()[flat_index]);
  }
  return 0;
}

TensorFile read_safetensors(const fs::path& path) {
  const std::string file = path.string();
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (!fs::exists(status)) bad(file, "no such file");
  if (!fs::is_regular_file(status)) bad(file, "not a regular file");
  const uint64_t file_bytes = fs::file_size(path, error);
  std::ifstream stream(path, std::ios::binary);
  if (error || !stream) bad(file, "cannot be opened for reading");

  uint64_t header_bytes = 0;
  if (file_bytes < sizeof header_bytes ||
      !stream.read(reinterpret_cast<char*>(&header_bytes), sizeof header_bytes)) {
    bad(file, "truncated: shorter than the 8 bytes of a safetensors header length");
  }
  if (header_bytes > file_bytes - 8) {
    bad(file, "header length " + std::to_string(header_bytes) + " is longer than the file (" +
                  std::to_string(file_bytes) + " bytes): truncated, or not a safetensors file");
  }
  if (header_bytes > kMaxHeaderBytes)
    bad(file, "header length " + std::to_string(header_bytes) + " is too large");
  std::string text(header_bytes, '\0');
  if (!stream.read(text.data(), std::streamsize(header_bytes))) bad(file, "header cannot be read");
  if (text.empty() || text[0] != '{') bad(file, "header does not begin with '{': not a safetensors file");

  const json header = parse_header(text, file);
  const int64_t data_bytes = int64_t(file_bytes - 8 - header_bytes);
  TensorFile result;
  std::vector<Entry> entries;
  for (const auto& [name, description] : header.items()) {
    if (name != "__metadata__") {
      entries.push_back(parse_entry(file, name, description, data_bytes));
      continue;
    }
    if (!description.is_object()) bad(file, "__metadata__ is not a JSON object");
    for (const auto& [key, value] : description.items()) {
      if (!value.is_string()) bad(file, "__metadata__: '" + key + "' must be a string, got " + value.dump());
      result.metadata[key] = value.get<std::string>();
    }
  }
  check_layout(file, entries, data_bytes);

  // Only now is memory for the data taken: by check_layout, exactly as much as the file holds.
  for (const Entry& entry : entries) {
    Tensor tensor(entry.dtype, entry.shape);
    stream.seekg(std::streamoff(8 + header_bytes) + entry.begin);
    if (!stream.read(reinterpret_cast<char*>(tensor.bytes.data()), std::streamsize(tensor.bytes.size()))) {
      bad(file, "tensor '" + entry.name + "': its data cannot be read");
    }
    result.tensors.emplace(entry.name, std::move(tensor));
  }
  return result;
}

void write_safetensors(const fs::path& path, const TensorFile& file) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (fs::exists(status) && !fs::is_regular_file(status))
    bad(path.string(), "exists and is not a regular file");

  TemporaryFile temporary{path.string() + ".partial-" + std::to_string(getpid())};
  std::ofstream stream(temporary.path, std::ios::binary | std::ios::trunc);
  if (!stream) {
    temporary.keep = true;  // it is not ours
    bad(path.string(), "cannot be written: " + std::string(std::strerror(errno)));
  }
  const std::string header = header_text(file);
  const uint64_t header_bytes = header.size();
  stream.write(reinterpret_cast<const char*>(&header_bytes), sizeof header_bytes);
  stream.write(header.data(), std::streamsize(header.size()));
  for (const auto& [name, tensor] : file.tensors) {  // sorted by name, the order of header_text
    stream.write(reinterpret_cast<const char*>(tensor.bytes.data()), std::streamsize(tensor.bytes.size()));
  }
  stream.close();
  if (!stream) bad(path.string(), "writing failed: " + std::string(std::strerror(errno)));
  fs::rename(temporary.path, path, error);
  if (error) bad(path.string(), "cannot be written: " + error.message());
  temporary.keep = true;
}

}  // namespace dsa::harness

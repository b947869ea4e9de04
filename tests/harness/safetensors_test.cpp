// Reading and writing safetensors files: everything that can be wrong with one is named.
#include <doctest/doctest.h>

#include <fstream>

#include "host_machine.hpp"

using namespace dsa::harness;
using test::bad_input;
using test::contains;
using test::TemporaryFolder;

namespace {

std::string length_prefix(uint64_t length) {
  std::string text(8, '\0');
  std::memcpy(text.data(), &length, 8);
  return text;
}

void write(const std::filesystem::path& path, const std::string& content) {
  std::ofstream(path, std::ios::binary) << content;
}

/// A file with this header and so many bytes of data.
std::string file_of(const std::string& header, std::size_t data_bytes = 0) {
  return length_prefix(header.size()) + header + std::string(data_bytes, '\1');
}

struct Malformed {
  const char* what;
  std::string content;
  const char* says;  ///< part of the message
};

std::vector<Malformed> malformed() {
  const auto one = [](const std::string& dtype, const std::string& shape, const std::string& offsets,
                      std::size_t data) {
    return file_of(
        R"({"a":{"dtype":)" + dtype + R"(,"shape":)" + shape + R"(,"data_offsets":)" + offsets + "}}", data);
  };
  const std::string f32 = R"("F32")";
  /// Two F32 tensors of the given names, shapes and offsets.
  const auto two = [](const std::string& a, const std::string& b, std::size_t data) {
    return file_of("{" + a + "," + b + "}", data);
  };
  const auto tensor = [](const std::string& name, int elements, int begin) {
    return "\"" + name + R"(":{"dtype":"F32","shape":[)" + std::to_string(elements) +
           R"(],"data_offsets":[)" + std::to_string(begin) + "," + std::to_string(begin + 4 * elements) +
           "]}";
  };
  return {
      {"empty file", "", "truncated"},
      {"five bytes", "abcde", "truncated"},
      {"header longer than the file", length_prefix(100) + "{}", "longer than the file"},
      {"header length 2^60", length_prefix(uint64_t(1) << 60) + "{}", "longer than the file"},
      {"header length 2^64 - 1", length_prefix(~uint64_t(0)) + "{}", "longer than the file"},
      {"no header", length_prefix(0), "does not begin with '{'"},
      {"an array as header", file_of("[1]"), "does not begin with '{'"},
      {"not JSON", file_of("{\"a\": }"), "not valid JSON"},
      {"cut JSON", file_of("{\"a\": {"), "not valid JSON"},
      {"text after JSON", file_of("{} x"), "not valid JSON"},
      {"bytes that are no UTF-8", file_of("{\"\xff\xfe\": 1}"), "not valid JSON"},
      {"duplicate tensor", two(tensor("a", 1, 0), tensor("a", 1, 0), 4), "duplicate key \"a\""},
      {"duplicate key in a tensor",
       file_of(R"({"a":{"dtype":"F32","dtype":"F32","shape":[],"data_offsets":[0,4]}})", 4),
       "duplicate key \"dtype\""},
      {"deep nesting", file_of("{\"a\":" + std::string(10000, '[') + std::string(10000, ']') + "}"),
       "nested"},
      {"description is a number", file_of(R"({"a":3})"), "tensor 'a': its description is not a JSON object"},
      {"no dtype", file_of(R"({"a":{"shape":[],"data_offsets":[0,4]}})", 4), "tensor 'a': has no 'dtype'"},
      {"no shape", file_of(R"({"a":{"dtype":"F32","data_offsets":[0,4]}})", 4), "tensor 'a': has no 'shape'"},
      {"no offsets", file_of(R"({"a":{"dtype":"F32","shape":[1]}})", 4), "tensor 'a': has no 'data_offsets'"},
      {"dtype is a number", one("5", "[1]", "[0,4]", 4), "dtype must be a string"},
      {"unknown dtype", one(R"("F64")", "[1]", "[0,8]", 8), "unsupported dtype \"F64\""},
      {"shape is a string", one(f32, R"("4")", "[0,4]", 4), "shape must be an array"},
      {"negative extent", one(f32, "[-1]", "[0,4]", 4), "extents must be non-negative integers, got -1"},
      {"fractional extent", one(f32, "[1.0]", "[0,4]", 4), "extents must be non-negative integers"},
      {"extent 2^63", one(f32, "[9223372036854775808]", "[0,4]", 4), "extents must be non-negative integers"},
      {"product overflows", one(f32, "[4294967296,4294967296]", "[0,4]", 4), "overflows 64 bits"},
      {"product overflows beside a 0", one(f32, "[4294967296,4294967296,0]", "[0,0]", 0),
       "overflows 64 bits"},
      {"bytes overflow", one(f32, "[4611686018427387904]", "[0,4]", 4), "overflows 64 bits"},
      {"three offsets", one(f32, "[1]", "[0,4,4]", 4), "data_offsets must be two integers"},
      {"negative offset", one(f32, "[1]", "[-4,0]", 4), "data_offsets must be non-negative integers"},
      {"end before begin", one(f32, "[1]", "[4,0]", 4), "end before they begin"},
      {"end past the file", one(f32, "[2]", "[0,8]", 4), "past the end of the file, which holds 4 bytes"},
      {"too few bytes for the shape", one(f32, "[2]", "[0,4]", 4), "shape [2] of F32 needs 8 bytes"},
      {"too many bytes for the shape", one(f32, "[1]", "[0,8]", 8), "shape [1] of F32 needs 4 bytes"},
      {"overlap", two(tensor("a", 2, 0), tensor("b", 2, 4), 12),
       "tensor 'b': its data overlap those of tensor 'a'"},
      {"hole", two(tensor("a", 1, 0), tensor("b", 1, 8), 12), "4 unused bytes between it and tensor 'a'"},
      {"hole at the start", one(f32, "[1]", "[4,8]", 8), "4 unused bytes"},
      {"rest at the end", one(f32, "[1]", "[0,4]", 9), "5 unused bytes after tensor 'a'"},
      {"metadata is a list", file_of(R"({"__metadata__":[]})"), "__metadata__ is not a JSON object"},
      {"metadata value is a number", file_of(R"({"__metadata__":{"topk":4}})"), "'topk' must be a string"},
  };
}

}  // namespace

TEST_CASE("safetensors: malformed files are refused by name") {
  const TemporaryFolder folder;
  const std::filesystem::path path = folder / "bad.safetensors";
  for (const Malformed& bad : malformed()) {
    CAPTURE(std::string(bad.what));
    write(path, bad.content);
    const std::string message = bad_input([&] { read_safetensors(path); });
    CAPTURE(message);
    CHECK(contains(message, bad.says));
    CHECK(contains(message, "bad.safetensors: "));
  }
}

TEST_CASE("safetensors: a path that is no file") {
  const TemporaryFolder folder;
  CHECK(contains(bad_input([&] { read_safetensors(folder / "none"); }), "no such file"));
  CHECK(contains(bad_input([&] { read_safetensors(folder.path()); }), "not a regular file"));
}

TEST_CASE("safetensors: every truncation of a good file is refused") {
  const TemporaryFolder folder;
  const std::filesystem::path path = folder / "cut.safetensors";
  const std::string good = file_of(R"({"a":{"dtype":"I32","shape":[3],"data_offsets":[0,12]}})", 12);
  write(path, good);
  CHECK(read_safetensors(path).tensors.at("a").elements() == 3);
  for (std::size_t length = 0; length < good.size(); ++length) {
    CAPTURE(length);
    write(path, good.substr(0, length));
    CHECK_FALSE(bad_input([&] { read_safetensors(path); }).empty());
  }
}

TEST_CASE("safetensors: what is written is read back") {
  const TemporaryFolder folder;
  const std::filesystem::path path = folder / "good.safetensors";
  TensorFile file;
  file.tensors["z"] = generate::normal(DType::kBF16, {2, 3}, 1);
  file.tensors["a"] = generate::normal(DType::kE4M3, {5}, 2);
  file.tensors["m"] = generate::integers({2}, {-1, 7});
  file.tensors["scalar"] = generate::floats({}, {2.5f});
  file.tensors["empty"] = Tensor(DType::kF32, {0, 4});
  file.metadata = {{"causal", "1"}, {"note", "quotes \" and \n"}};
  write_safetensors(path, file);

  const TensorFile back = read_safetensors(path);
  CHECK(back.metadata == file.metadata);
  REQUIRE(back.tensors.size() == file.tensors.size());
  for (const auto& [name, tensor] : file.tensors) {
    CAPTURE(name);
    CHECK(back.tensors.at(name).shape == tensor.shape);
    CHECK((back.tensors.at(name).dtype == tensor.dtype));
    CHECK((back.tensors.at(name).bytes == tensor.bytes));
  }
  CHECK(back.tensors.at("scalar").at(0) == 2.5);

  uint64_t header_bytes = 0;
  std::ifstream(path, std::ios::binary).read(reinterpret_cast<char*>(&header_bytes), 8);
  CHECK(header_bytes % 8 == 0);
}

TEST_CASE("safetensors: a failed write leaves the old file and nothing else") {
  const TemporaryFolder folder;
  const std::filesystem::path path = folder / "out.safetensors";
  TensorFile file;
  file.tensors["a"] = Tensor(DType::kF32, {4});
  CHECK(contains(bad_input([&] { write_safetensors(folder / "none" / "x", file); }), "cannot be written"));
  std::filesystem::create_directory(path);
  CHECK(contains(bad_input([&] { write_safetensors(path, file); }), "not a regular file"));
  std::filesystem::remove(path);
  write_safetensors(path, file);
  write_safetensors(path, file);  // over an existing file
  int entries = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder.path())) ++entries;
  CHECK(entries == 1);
}

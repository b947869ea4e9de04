/// @file host_machine.hpp
/// A machine without kernels of its own: heap memory, on which tests run host functions as if they were
/// kernels.
#pragma once

#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "cuda/harness/check.hpp"
#include "cuda/harness/generate.hpp"

namespace dsa::harness::test {

class HostMachine final : public Machine {
 public:
  void* allocate(std::size_t bytes) override { return std::aligned_alloc(256, (bytes + 255) / 256 * 256); }
  void release(void* address) override { std::free(address); }
  void copy_in(void* to, const void* from, std::size_t bytes) override { copy(to, from, bytes); }
  void copy_out(void* to, const void* from, std::size_t bytes) override { copy(to, from, bytes); }
  void fill(void* address, unsigned char value, std::size_t bytes) override {
    std::memset(address, value, bytes);
  }
  void poison_shared_memory() override {}
  std::string synchronize() override { return ""; }
  void* stream() override { return nullptr; }

 private:
  static void copy(void* to, const void* from, std::size_t bytes) {
    if (bytes > 0) std::memcpy(to, from, bytes);  // null is not allowed even for 0 bytes
  }
};

/// A rung made of a host function.
inline RungEntry rung(Stage stage, int (*launch)(const Args&, void*), Accuracy accuracy,
                      bool repeatable = true) {
  return {stage,    Device::kEmulator, "test",   "a host function",
          accuracy, repeatable,        __FILE__, [](const Args&) -> const char* { return nullptr; },
          launch};
}

/// A file name in a folder of this test run's own; the folder and what is in it go with the object.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "dsa-harness-XXXXXX").string();
    path_ = mkdtemp(pattern.data());
  }
  ~TemporaryFolder() { std::filesystem::remove_all(path_); }
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

/// The message of the BadInput that `action` throws; "" if it throws none.
template <class Action>
std::string bad_input(const Action& action) {
  try {
    action();
  } catch (const BadInput& error) {
    return error.what();
  }
  return "";
}

inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace dsa::harness::test

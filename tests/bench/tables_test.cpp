// Tables between markers: filled, checked, and refused when a marker is wrong.
#include <doctest/doctest.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "bench/tables.hpp"
#include "cuda/harness/tensor.hpp"
#include "synthetic.hpp"

using namespace dsa::bench;
using dsa::harness::BadInput;

namespace {

std::string fill(const std::string& document) {
  return fill_tables(document, "page.md", synthetic_results(), synthetic_registry());
}

const std::string kPage =
    "# Title\n"
    "<!-- results:begin stage=topk -->\n"
    "stale\n"
    "<!-- results:end -->\n"
    "after\n";

/// A folder that is gone when the test is.
struct TemporaryFolder {
  std::filesystem::path path = std::filesystem::temp_directory_path() / "dsa_tables_test";
  TemporaryFolder() { std::filesystem::create_directories(path); }
  ~TemporaryFolder() { std::filesystem::remove_all(path); }
  std::string file(const char* name) const { return (path / name).string(); }
  void write(const char* name, const std::string& content) const { std::ofstream(file(name)) << content; }
  std::string read(const char* name) const {
    std::ostringstream content;
    content << std::ifstream(file(name)).rdbuf();
    return content.str();
  }
};

/// Exit status of `dsa tables ARGUMENTS`.
int run_tables(const std::vector<std::string>& arguments) {
  CLI::App app;
  add_tables_command(app);
  std::vector<std::string> reversed(arguments.rbegin(), arguments.rend());
  reversed.push_back("tables");
  try {
    app.parse(reversed);
    return 0;
  } catch (const CLI::RuntimeError& error) {
    return error.get_exit_code();
  }
}

}  // namespace

TEST_CASE("what stands between the markers is replaced, the rest is kept") {
  const std::string filled = fill(kPage);
  CHECK(filled.rfind("# Title\n<!-- results:begin stage=topk -->\n**topk**: rows 4", 0) == 0);
  CHECK(filled.find("stale") == std::string::npos);
  CHECK(filled.find("rows 8, n 100") != std::string::npos);  // without case=, every case
  CHECK(filled.find("\n<!-- results:end -->\nafter\n") != std::string::npos);
  CHECK(fill(filled) == filled);
}

TEST_CASE("a document without markers, or without a last newline, is kept as it is") {
  for (const char* document : {"", "text", "text\n", "a\n\n\nb\n"}) CHECK(fill(document) == document);
}

TEST_CASE("case= selects one case, summary the line per stage") {
  const std::string one =
      fill("<!-- results:begin stage=topk case=rows:8/n:100/topk:8 -->\n<!-- results:end -->\n");
  CHECK(one.find("rows 8, n 100") != std::string::npos);
  CHECK(one.find("rows 4, n 100") == std::string::npos);
  const std::string summary = fill("<!-- results:begin summary -->\n<!-- results:end -->\n");
  CHECK(summary.find("| quantize |") != std::string::npos);
  CHECK(summary.find("03_one_pass: 2.00 ms") != std::string::npos);
}

TEST_CASE("a stage that was not measured still lists its rungs") {
  const std::string filled = fill("<!-- results:begin stage=sparse_mla_fwd -->\n<!-- results:end -->\n");
  CHECK(filled.find("| 01_naive | one CTA per (query, head) | not measured |") != std::string::npos);
}

TEST_CASE("wrong markers are errors that name the line") {
  const auto refuses = [](const std::string& document, const char* reason) {
    CHECK_THROWS_WITH_AS(fill(document), doctest::Contains(reason), BadInput);
  };
  refuses("\n<!-- results:begin stage=top_k -->\n<!-- results:end -->\n", "page.md:2: unknown stage 'top_k'");
  refuses("<!-- results:begin stage=topk case=rows:5 -->\n<!-- results:end -->\n", "'rows:5'");
  refuses("<!-- results:begin stage=topk regime=fast -->\n<!-- results:end -->\n", "'regime=fast'");
  refuses("<!-- results:begin -->\n<!-- results:end -->\n", "either summary or stage=");
  refuses("<!-- results:begin summary stage=topk -->\n<!-- results:end -->\n", "either summary or stage=");
  refuses("<!-- results:begin stage=topk\n<!-- results:end -->\n", "must end with");
  refuses("<!-- results:begin stage=topk -->\n", "results:begin without results:end");
  refuses("text\n<!-- results:end -->\n", "page.md:2: results:end without results:begin");
  refuses("<!-- results:begin stage=topk -->\n<!-- results:begin stage=topk -->\n<!-- results:end -->\n",
          "inside");
}

TEST_CASE("the first difference is shown with its line") {
  CHECK(first_difference("a\nb\n", "a\nb\n").empty());
  CHECK(first_difference("a\nb\nc\n", "a\nx\nc\n") == "line 2:\n- b\n+ x\n");
  CHECK(first_difference("a\n", "a\nb\n") == "line 2:\n- \n+ b\n");
  CHECK(first_difference("a\n\n", "a\n") == "line 2:\n- \n+ \n");
}

TEST_CASE("--write makes --check pass; one changed digit makes it fail") {
  const TemporaryFolder folder;
  write_results(folder.file("results.json"), synthetic_results());
  folder.write("page.md", kPage);
  const std::vector<std::string> common{"--json", folder.file("results.json"), folder.file("page.md")};
  const auto run = [&](const char* mode) {
    std::vector<std::string> arguments = common;
    arguments.push_back(mode);
    return run_tables(arguments);
  };
  CHECK(run("--check") == 1);
  CHECK(folder.read("page.md") == kPage);
  CHECK(run("--write") == 0);
  CHECK(run("--check") == 0);

  std::string page = folder.read("page.md");
  const std::size_t digit = page.find("8.00 ms");
  REQUIRE(digit != std::string::npos);
  page[digit] = '7';
  folder.write("page.md", page);
  CHECK(run("--check") == 1);
}

TEST_CASE("a missing results file and a missing page are bad input") {
  const TemporaryFolder folder;
  CHECK_THROWS_AS(run_tables({"--json", folder.file("absent.json"), folder.file("page.md")}), BadInput);
  write_results(folder.file("results.json"), synthetic_results());
  CHECK_THROWS_AS(run_tables({"--json", folder.file("results.json"), folder.file("absent.md")}), BadInput);
}

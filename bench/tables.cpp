#include "tables.hpp"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <memory>
#include <sstream>

#include "../cuda/harness/cases.hpp"

namespace dsa::bench {

using harness::BadInput;

namespace {

constexpr const char* kBegin = "<!-- results:begin";
constexpr const char* kEnd = "<!-- results:end -->";
constexpr const char* kClose = " -->";

bool starts_with(const std::string& line, const std::string& start) {
  return line.rfind(start, 0) == 0;
}
bool ends_with(const std::string& line, const std::string& end) {
  return line.size() >= end.size() && line.compare(line.size() - end.size(), end.size(), end) == 0;
}

/// What a begin marker asks for.
struct Request {
  bool summary = false;
  std::string stage, case_name, regime = regime_name(Regime::kSustained);
};

Request parse_request(const std::string& line, const std::string& where) {
  if (!ends_with(line, kClose)) throw BadInput(where + "a results marker must end with ' -->'");
  const std::string begin = kBegin;
  std::istringstream words(
      line.substr(begin.size(), line.size() - begin.size() - std::string(kClose).size()));
  Request request;
  for (std::string word; words >> word;) {
    const std::string key = word.substr(0, word.find('='));
    const std::string value = key.size() < word.size() ? word.substr(key.size() + 1) : "";
    if (word == "summary") {
      request.summary = true;
    } else if (key == "stage") {
      request.stage = value;
    } else if (key == "case") {
      request.case_name = value;
    } else if (key == "regime" && (value == "burst" || value == "sustained")) {
      request.regime = value;
    } else {
      throw BadInput(where + "'" + word + "' in a results marker; known are summary, stage=, case=, " +
                     "regime=burst and regime=sustained");
    }
  }
  if (request.summary == !request.stage.empty()) {
    throw BadInput(where + "a results marker needs either summary or stage=");
  }
  return request;
}

/// A case that is neither measured nor in the benchmarks' list is a spelling mistake.
bool known_case(Stage stage, const std::string& case_name, const std::vector<Ladder>& measured) {
  const auto same = [&](const auto& item) { return item.case_name == case_name; };
  if (std::any_of(measured.begin(), measured.end(), same)) return true;
  const auto listed = harness::cases_of(stage, harness::CaseKind::kBench);
  return std::any_of(listed.begin(), listed.end(), [&](const auto* item) { return item->name == case_name; });
}

std::string table_for(const Request& request, const std::string& where, const Results& results,
                      const Registry& registry) {
  if (request.summary) return summary_markdown(results, registry);
  Stage stage;
  try {
    stage = stage_by_name(request.stage);
  } catch (const BadInput& error) {
    throw BadInput(where + error.what());
  }
  std::vector<Ladder> ladders = ladders_of(results, registry, stage);
  if (!request.case_name.empty()) {
    if (!known_case(stage, request.case_name, ladders)) {
      throw BadInput(where + "no benchmark case of " + request.stage + " is called '" + request.case_name +
                     "'");
    }
    ladders = {make_ladder(results, registry, stage, request.case_name, request.regime)};
  } else {
    std::erase_if(ladders, [&](const Ladder& l) { return l.warm || l.regime != request.regime; });
    if (ladders.empty()) ladders = {make_ladder(results, registry, stage, "", request.regime)};
  }
  std::string tables;
  for (const Ladder& ladder : ladders) tables += (tables.empty() ? "" : "\n") + ladder_markdown(ladder);
  return tables;
}

std::string read_file(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  std::ostringstream content;
  content << stream.rdbuf();
  if (!stream) throw BadInput(path + ": cannot be read");
  return content.str();
}

void write_file(const std::string& path, const std::string& content) {
  std::ofstream stream(path, std::ios::binary | std::ios::trunc);
  stream << content;
  stream.close();
  if (!stream) throw BadInput(path + ": cannot be written");
}

struct TablesOptions {
  std::string json = kDefaultResults;
  std::vector<std::string> files;
  bool write = false;
  bool check = false;
};

void tables(const TablesOptions& options) {
  const Results results = read_results(options.json);
  bool differ = false;
  for (const std::string& file : options.files) {
    const std::string old_text = read_file(file);
    const std::string new_text = fill_tables(old_text, file, results, rungs());
    if (options.write) {
      if (new_text != old_text) write_file(file, new_text);
    } else if (options.check) {
      const std::string difference = first_difference(old_text, new_text);
      if (difference.empty()) continue;
      differ = true;
      std::fprintf(stderr, "%s differs from %s at %s", file.c_str(), options.json.c_str(),
                   difference.c_str());
    } else {
      std::fputs(new_text.c_str(), stdout);
    }
  }
  if (!differ) return;
  std::fprintf(stderr, "Run dsa tables --json %s --write FILES... and commit the result.\n",
               options.json.c_str());
  throw CLI::RuntimeError(1);
}

}  // namespace

std::string fill_tables(const std::string& document, const std::string& source, const Results& results,
                        const Registry& registry) {
  std::istringstream lines(document);
  std::string filled, opened_at;
  int number = 0;
  for (std::string line; std::getline(lines, line);) {
    const std::string where = source + ":" + std::to_string(++number) + ": ";
    if (starts_with(line, kBegin)) {
      if (!opened_at.empty()) throw BadInput(where + "results:begin inside the table begun at " + opened_at);
      opened_at = where;
      filled += line + "\n" + table_for(parse_request(line, where), where, results, registry);
    } else if (starts_with(line, kEnd)) {
      if (opened_at.empty()) throw BadInput(where + "results:end without results:begin");
      opened_at.clear();
    }
    if (opened_at.empty()) filled += line + (lines.eof() ? "" : "\n");
  }
  if (!opened_at.empty()) throw BadInput(opened_at + "results:begin without results:end");
  return filled;
}

std::string first_difference(const std::string& old_text, const std::string& new_text) {
  std::istringstream old_lines(old_text), new_lines(new_text);
  for (int number = 1;; ++number) {
    std::string old_line, new_line;
    const bool old_more = bool(std::getline(old_lines, old_line));
    const bool new_more = bool(std::getline(new_lines, new_line));
    if (!old_more && !new_more) return "";
    if (old_more == new_more && old_line == new_line) continue;
    return "line " + std::to_string(number) + ":\n- " + old_line + "\n+ " + new_line + "\n";
  }
}

void add_tables_command(CLI::App& app) {
  CLI::App* command = app.add_subcommand("tables", "Fill the tables of Markdown files from a results file");
  const auto options = std::make_shared<TablesOptions>();
  command->add_option("files", options->files, "Markdown files")->required();
  command->add_option("--json", options->json, std::string("Results, default ") + kDefaultResults);
  CLI::Option* write = command->add_flag("--write", options->write, "Change the files (default: print them)");
  command->add_flag("--check", options->check, "Only compare; exit status 1 if a file differs")
      ->excludes(write);
  command->callback([options] { tables(*options); });
}

}  // namespace dsa::bench

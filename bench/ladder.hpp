/// @file ladder.hpp
/// The ladder of a stage as a table: every rung with its time, its rate, its share of the yardstick and its
/// gain over the rung before. Made from a results file and the registry; nothing else lists the rungs.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "results.hpp"

namespace CLI {
class App;
}

namespace dsa::bench {

inline constexpr const char* kNotMeasured = "not measured";

/// A rung in a table.
struct LadderRow {
  std::string rung;
  std::string summary;
  std::optional<double> seconds;  ///< median of one launch
  std::optional<double> rate;     ///< FLOP/s or bytes/s
  std::optional<double> ratio;    ///< to the yardstick
  std::optional<double> gain;     ///< time of the measured rung before, over this one's
  std::string note;               ///< instead of a time: "not measured", "unsupported: ..."
};

/// One stage on one case in one regime.
struct Ladder {
  Stage stage;
  std::string case_name;
  std::string regime;
  bool warm = false;
  std::vector<LadderRow> rows;  ///< in reading order
  YardstickKind yardstick = YardstickKind::kCopy;
  std::optional<double> yardstick_rate;  ///< its own row in the file, FLOP/s or bytes/s
  std::string conditions;                ///< "NVIDIA H200, 2026-01-31, SM clock 1410 to 1755 MHz, ..."

  Unit unit() const { return yardstick_unit(yardstick); }
  const LadderRow* best() const;   ///< the fastest, null if none was measured
  const LadderRow* first() const;  ///< the first that was measured
};

using Registry = std::vector<RungEntry>;

/// The ladder of one case. Its rows are all numbered rungs (NN_...) of the registry, measured or not, and
/// whatever else the file has: a reader's own kernel shows once it is measured.
Ladder make_ladder(const Results& results, const Registry& registry, Stage stage,
                   const std::string& case_name, const std::string& regime, bool warm = false);

/// All ladders of a stage that the file has rows for, in the file's order.
std::vector<Ladder> ladders_of(const Results& results, const Registry& registry, Stage stage);

/// Title, table and footnote, aligned for a terminal.
std::string ladder_text(const Ladder& ladder);
/// The same in Markdown.
std::string ladder_markdown(const Ladder& ladder);
/// One line per stage in Markdown: first and best rung of the first case in the results, sustained regime.
std::string summary_markdown(const Results& results, const Registry& registry);

/// Adds `[STAGE] [--json FILE] [--markdown]` to a command or program that prints ladders.
void add_ladder_options(CLI::App& command);
/// Adds `dsa ladder`.
void add_ladder_command(CLI::App& app);
/// Adds `dsa tables` (tables.hpp).
void add_tables_command(CLI::App& app);

inline constexpr const char* kDefaultResults = "docs/results/h200.json";

}  // namespace dsa::bench

#include "ladder.hpp"

#include <algorithm>
#include <cctype>
#include <map>
#include <set>

#include "row_text.hpp"
#include "text.hpp"

namespace dsa::bench {

namespace {

/// "01_naive": a step of the published ladder, as opposed to a reader's own kernel.
bool is_numbered(const std::string& rung) {
  return rung.size() > 3 && std::isdigit(rung[0]) && std::isdigit(rung[1]) && rung[2] == '_';
}

const std::string& context_value(const Results& results, const std::string& key) {
  static const std::string unknown = "unknown";
  const auto found = results.context.find(key);
  return found == results.context.end() ? unknown : found->second;
}

/// Smallest and largest value of a counter, as "1410" or "1410 to 1755"; empty without values.
std::string range_text(const std::vector<const ResultRow*>& rows, const std::string& counter) {
  std::vector<double> values;
  for (const ResultRow* row : rows) {
    if (const auto value = row->counter(counter)) values.push_back(*value);
  }
  if (values.empty()) return "";
  const auto [least, most] = std::minmax_element(values.begin(), values.end());
  const std::string low = text("%.0f", *least), high = text("%.0f", *most);
  return low == high ? low : low + " to " + high;
}

std::string conditions_text(const Results& results, const std::vector<const ResultRow*>& rows) {
  std::string conditions =
      context_value(results, "gpu") + ", " + context_value(results, "date").substr(0, 10);
  const std::string clock = range_text(rows, "sm_clock_mhz"), power = range_text(rows, "power_w");
  conditions += clock.empty() ? ", SM clock not read" : ", SM clock " + clock + " MHz";
  if (!power.empty()) conditions += ", " + power + " W";
  return conditions;
}

/// Name and summary of every rung that belongs in the table, in reading order.
std::vector<LadderRow> empty_rows(const Registry& registry, Stage stage,
                                  const std::set<std::string>& measured) {
  std::map<std::string, LadderRow> rows;
  for (const std::string& rung : measured) rows[rung] = {rung, "(not in this build)", {}, {}, {}, {}, ""};
  for (const RungEntry& entry : registry) {  // once per device
    if (entry.stage != stage || !(is_numbered(entry.name) || measured.count(entry.name))) continue;
    rows[entry.name] = {entry.name, entry.summary, {}, {}, {}, {}, ""};
  }
  std::vector<LadderRow> list;
  for (auto& [name, row] : rows) list.push_back(std::move(row));
  return list;
}

/// Rows of the file that belong to one ladder, by rung.
std::map<std::string, const ResultRow*> rows_of(const Results& results, const ResultName& wanted) {
  std::map<std::string, const ResultRow*> found;
  for (const ResultRow& row : results.rows) {
    const auto name = parse_result_name(row.name);
    if (name && name->stage == wanted.stage && name->case_name == wanted.case_name &&
        name->regime == wanted.regime && name->warm == wanted.warm) {
      found[name->rung] = &row;
    }
  }
  return found;
}

/// The yardstick of a ladder. Warm or FP8 changes whether it is a ceiling, not which one it is.
YardstickKind yardstick_of(Stage stage) {
  switch (stage) {
    case Stage::kQuantize:
      return yardstick_for(QuantizeArgs{}, false).kind;
    case Stage::kIndexer:
      return yardstick_for(IndexerArgs{}, false).kind;
    case Stage::kTopk:
      return yardstick_for(TopkArgs{}, false).kind;
    case Stage::kIndexTopk:
      return yardstick_for(IndexTopkArgs{}, false).kind;
    case Stage::kSparseMlaFwd:
      return yardstick_for(SparseMlaFwdArgs{}, false).kind;
    case Stage::kSparseMlaBwd:
      return yardstick_for(SparseMlaBwdArgs{}, false).kind;
  }
  return YardstickKind::kCopy;
}

}  // namespace

const LadderRow* Ladder::best() const {
  const LadderRow* best = nullptr;
  for (const LadderRow& row : rows) {
    if (row.seconds && (!best || *row.seconds < *best->seconds)) best = &row;
  }
  return best;
}

const LadderRow* Ladder::first() const {
  for (const LadderRow& row : rows) {
    if (row.seconds) return &row;
  }
  return nullptr;
}

Ladder make_ladder(const Results& results, const Registry& registry, Stage stage,
                   const std::string& case_name, const std::string& regime, bool warm) {
  const auto found = rows_of(results, {stage_name(stage), "", case_name, regime, warm});
  std::set<std::string> names;
  std::vector<const ResultRow*> rows;
  for (const auto& [rung, row] : found) {
    names.insert(rung);
    rows.push_back(row);
  }
  Ladder ladder{stage, case_name, regime, warm, empty_rows(registry, stage, names), yardstick_of(stage),
                {},    ""};
  const LadderRow* before = nullptr;
  for (LadderRow& row : ladder.rows) {
    const auto entry = found.find(row.rung);
    if (entry == found.end() || !entry->second->error.empty()) {
      row.note = entry == found.end() ? kNotMeasured : entry->second->error;
      continue;
    }
    const ResultRow& result = *entry->second;
    row.seconds = result.counter("median_s").value_or(result.mean_s);
    if (const auto rate = rate_of(result)) row.rate = rate->per_s;
    row.ratio = result.counter("yardstick_ratio");
    if (before) row.gain = *before->seconds / *row.seconds;
    before = &row;
  }
  const ResultRow* yardstick =
      results.find(result_name({"yardstick", yardstick_name(ladder.yardstick), "", regime}));
  if (yardstick) {
    if (const auto rate = rate_of(*yardstick)) ladder.yardstick_rate = rate->per_s;
  }
  ladder.conditions = conditions_text(results, rows);
  return ladder;
}

std::vector<Ladder> ladders_of(const Results& results, const Registry& registry, Stage stage) {
  std::vector<Ladder> ladders;
  std::set<std::string> seen;
  for (const ResultRow& row : results.rows) {
    auto name = parse_result_name(row.name);
    if (!name || name->stage != stage_name(stage)) continue;
    name->rung.clear();
    if (!seen.insert(result_name(*name)).second) continue;
    ladders.push_back(make_ladder(results, registry, stage, name->case_name, name->regime, name->warm));
  }
  return ladders;
}

}  // namespace dsa::bench

#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>

#include "ladder.hpp"
#include "row_text.hpp"
#include "text.hpp"

namespace dsa::bench {

namespace {

/// "s_q 4096, s_kv 8192, h_q 128" from "s_q:4096/s_kv:8192/h_q:128".
std::string case_text(const std::string& case_name) {
  std::string readable;
  for (char c : case_name) readable += c == ':' ? " " : c == '/' ? ", " : std::string(1, c);
  return readable;
}

std::string title(const Ladder& ladder) {
  std::string words = case_text(ladder.case_name);
  words += (words.empty() ? "" : ", ") + ladder.regime;
  return words + (ladder.warm ? ", warm cache" : "");
}

const char* rate_unit(Unit unit) {
  return unit == Unit::kFlop ? "TFLOP/s" : "GB/s";
}

std::string rate_number(double rate, Unit unit) {
  return significant(unit == Unit::kFlop ? rate * 1e-12 : rate * 1e-9);
}

std::string percent(const std::optional<double>& ratio) {
  return ratio ? text("%.1f %%", 100 * *ratio) : "";
}
std::string factor(const std::optional<double>& gain) {
  return gain ? text("%.2f", *gain) : "";
}

/// The word in the place of a time, and the rest of the note for the column beside it.
std::pair<std::string, std::string> split_note(const std::string& note) {
  static const std::string kUnsupported = "unsupported";
  if (note == kNotMeasured) return {note, ""};
  if (note.rfind(kUnsupported + ": ", 0) == 0) return {kUnsupported, note.substr(kUnsupported.size() + 2)};
  return {"not timed", note};
}

Table table_of(const Ladder& ladder) {
  Table table;
  table.header = {"rung",
                  "what it does",
                  "time",
                  rate_unit(ladder.unit()),
                  std::string("% of ") + yardstick_title(ladder.yardstick),
                  "x over the rung before"};
  table.right = {false, false, true, true, true, true};
  for (const LadderRow& row : ladder.rows) {
    const auto [word, reason] = split_note(row.note);
    table.rows.push_back({row.rung, row.summary + (reason.empty() ? "" : " (" + reason + ")"),
                          row.seconds ? time_text(*row.seconds) : word,
                          row.rate ? rate_number(*row.rate, ladder.unit()) : "", percent(row.ratio),
                          factor(row.gain)});
  }
  return table;
}

std::string footnote(const Ladder& ladder) {
  std::string note = work_convention(ladder.stage);
  note += std::string(" Yardstick: ") + yardstick_title(ladder.yardstick);
  if (ladder.unit() == Unit::kFlop) {
    const std::string size = std::to_string(kYardstickSize);
    note += ", " + size + " x " + size + " x " + size;
  }
  if (ladder.yardstick_rate) note += ", " + rate_text(*ladder.yardstick_rate, ladder.unit());
  note += "; measured again around every rung.";
  return note + " Median times. " + ladder.conditions + ".";
}

struct LadderOptions {
  std::string stage;
  std::string json = kDefaultResults;
  bool markdown = false;
};

void print_ladders(const LadderOptions& options) {
  if (!options.stage.empty()) stage_by_name(options.stage);
  const Results results = read_results(options.json);
  for (Stage stage : kStages) {
    if (!options.stage.empty() && options.stage != stage_name(stage)) continue;
    const std::vector<Ladder> ladders = ladders_of(results, rungs(), stage);
    if (ladders.empty()) std::printf("%s: not measured in %s\n\n", stage_name(stage), options.json.c_str());
    for (const Ladder& ladder : ladders) {
      std::printf("%s\n", (options.markdown ? ladder_markdown(ladder) : ladder_text(ladder)).c_str());
    }
  }
}

}  // namespace

std::string ladder_text(const Ladder& ladder) {
  return std::string(stage_name(ladder.stage)) + ": " + title(ladder) + "\n" + table_of(ladder).aligned() +
         footnote(ladder) + "\n";
}

std::string ladder_markdown(const Ladder& ladder) {
  return std::string("**") + stage_name(ladder.stage) + "**: " + title(ladder) + "\n\n" +
         table_of(ladder).markdown() + "\n" + footnote(ladder) + "\n";
}

std::string summary_markdown(const Results& results, const Registry& registry) {
  Table table;
  table.header = {"stage", "case", "first rung", "best rung", "rate", "of the yardstick", "x over the first"};
  table.right = {false, false, true, true, true, true, true};
  for (Stage stage : kStages) {
    std::optional<Ladder> chosen;
    for (Ladder& ladder : ladders_of(results, registry, stage)) {
      const LadderRow* best = ladder.best();
      if (ladder.regime != regime_name(Regime::kSustained) || ladder.warm || !best) continue;
      if (!chosen) chosen = std::move(ladder);
    }
    if (!chosen) {
      table.rows.push_back({stage_name(stage), "", "not measured", "", "", "", ""});
      continue;
    }
    const LadderRow& first = *chosen->first();
    const LadderRow& best = *chosen->best();
    table.rows.push_back(
        {stage_name(stage), case_text(chosen->case_name), first.rung + ": " + time_text(*first.seconds),
         best.rung + ": " + time_text(*best.seconds), best.rate ? rate_text(*best.rate, chosen->unit()) : "",
         best.ratio ? percent(best.ratio) + " of " + yardstick_title(chosen->yardstick) : "",
         factor(*first.seconds / *best.seconds)});
  }
  const auto context = [&](const char* key) {
    const auto found = results.context.find(key);
    return found == results.context.end() ? std::string("unknown") : found->second;
  };
  return table.markdown() + "\nFor each stage its first benchmark case, under sustained load. " +
         context("gpu") + ", " + context("date").substr(0, 10) + ".\n";
}

void add_ladder_options(CLI::App& command) {
  const auto options = std::make_shared<LadderOptions>();
  command.add_option("stage", options->stage, "Only this stage");
  command.add_option("--json", options->json, std::string("Results, default ") + kDefaultResults);
  command.add_flag("--markdown", options->markdown, "Markdown instead of aligned text");
  command.callback([options] { print_ladders(*options); });
}

void add_ladder_command(CLI::App& app) {
  add_ladder_options(*app.add_subcommand("ladder", "Print the ladder of a stage from a results file"));
}

}  // namespace dsa::bench

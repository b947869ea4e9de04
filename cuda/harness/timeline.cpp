#include "timeline.hpp"

#include <algorithm>
#include <map>

#include "roles.hpp"
#include "tensor.hpp"

namespace dsa::harness {

namespace {

using emulator::Span;
using emulator::Trace;

// ---- Sizes, in tenths of a pixel: whole numbers, so that every machine draws the same ---------------------
constexpr int64_t kWidth = 10000;
constexpr int64_t kLeft = 1600, kRight = 9840;  // of the lanes
constexpr int64_t kTop = 920;                   // of the first lane
constexpr int64_t kLaneHeight = 300, kLaneStep = 410;
constexpr int64_t kDrawnAlone = 30;  // narrower bars of one colour share a path, and have no tooltip
constexpr int64_t kSameBar = 6;      // bars of one name that are closer are one
constexpr int64_t kLetter = 63;      // width of one at font size 11, a little generous

/// Of a role: a light, a middle and a darker tint for its steps in turn, and the outline. The same colours as
/// in the other figures (docs/figures), the copying role being orange everywhere.
struct Colour {
  const char* tints[3];
  const char* line;
};
constexpr Colour kProducer = {{"#fbe3c8", "#f6cd9c", "#efb774"}, "#8a4b08"};
constexpr Colour kOthers[] = {{{"#d3e4f5", "#b4d0ec", "#95bce2"}, "#1f4e79"},
                              {{"#d6ebd3", "#b7dab2", "#99c992"}, "#2c642c"},
                              {{"#e2d5f0", "#cfbae4", "#bba0d8"}, "#553581"},
                              {{"#f6d5dc", "#edb6c2", "#e397a8"}, "#83263e"},
                              {{"#d2ecec", "#afdada", "#8cc9c9"}, "#1d5f5f"}};
constexpr const char* kWaitLine = "#8c8c8c";

std::string px(int64_t tenths) {
  std::string text = std::to_string(tenths / 10);
  if (tenths % 10) text += "." + std::to_string(tenths % 10);
  return text;
}

std::string escaped(const std::string& text) {
  std::string result;
  for (const char c : text) {
    switch (c) {
      case '&':
        result += "&amp;";
        break;
      case '<':
        result += "&lt;";
        break;
      case '>':
        result += "&gt;";
        break;
      case '"':
        result += "&quot;";
        break;
      default:
        result += c;
    }
  }
  return result;
}

std::string attribute(const char* name, const std::string& value) {
  return std::string(" ") + name + "=\"" + value + "\"";
}

// ---- What is drawn ------------------------------------------------------------------------------------------
struct Bar {
  uint64_t begin, end;
  std::string label;    ///< as much of it as fits is written into the bar
  std::string tooltip;  ///< without the clocks
  std::size_t role;
  std::size_t tint;  ///< kWaiting: hatched, whatever the role
};
constexpr std::size_t kWaiting = 3;

struct Lane {
  std::string name, note;
  std::vector<Bar> bars;
  const Colour* swatch = nullptr;
};

/// Which tint each step of a role has: in turn.
class Tints {
 public:
  std::size_t of(std::size_t role, const std::string& step) {
    const auto key = std::pair(role, step);
    const auto found = tints_.find(key);
    if (found != tints_.end()) return found->second;
    return tints_.emplace(key, used_[role]++ % kWaiting).first->second;
  }

 private:
  std::map<std::pair<std::size_t, std::string>, std::size_t> tints_;
  std::map<std::size_t, std::size_t> used_;
};

class Drawing {
 public:
  Drawing(const Trace& trace, const TimelineOptions& options)
      : trace_(trace), options_(options), from_(options.from), to_(options.to ? options.to : trace.end) {
    if (to_ <= from_)
      throw BadInput("no clocks between " + std::to_string(from_) + " and " + std::to_string(to_));
    roles_ = roles_of(trace);
    std::size_t other = 0;
    for (const Role& role : roles_) {
      const bool copies = role.name.find("producer") != std::string::npos;
      colours_.push_back(copies ? &kProducer : &kOthers[other++ % std::size(kOthers)]);
    }
    for (std::size_t role = 0; role < roles_.size(); ++role) add_role(role);
    add_engine(Span::Kind::kCopy, "copies");
    add_engine(Span::Kind::kProduct, "tensor cores");
    if (std::all_of(lanes_.begin(), lanes_.end(), [](const Lane& lane) { return lane.bars.empty(); }))
      throw BadInput("nothing to draw between clocks " + std::to_string(from_) + " and " +
                     std::to_string(to_));
  }

  std::string svg() {
    const int64_t bottom = kTop + int64_t(lanes_.size()) * kLaneStep;
    ticks(bottom);
    for (std::size_t i = 0; i < lanes_.size(); ++i) draw_lane(lanes_[i], kTop + int64_t(i) * kLaneStep);
    const int64_t height = key(bottom + 380) + 200;
    return head(height) + out_ + "</svg>\n";
  }

 private:
  // ---- From spans to bars -----------------------------------------------------------------------------------
  bool visible(const Span& span) const { return span.end > from_ && span.begin < to_; }
  void add(Lane& lane, uint64_t begin, uint64_t end, Bar bar) const {
    bar.begin = std::max(begin, from_);
    bar.end = std::min(end, to_);
    if (bar.begin < bar.end) lane.bars.push_back(std::move(bar));
  }

  /// Steps, cut where the warp waits.
  void add_role(std::size_t role) {
    Lane lane{roles_[role].name, warps_text(roles_[role]), {}, colours_[role]};
    const auto mine = [&](const Span& span, Span::Kind kind) {
      return span.kind == kind && span.warp == roles_[role].warps.front() && visible(span);
    };
    std::vector<const Span*> waits;
    for (const Span& span : trace_.spans) {
      if (!mine(span, Span::Kind::kWait)) continue;
      waits.push_back(&span);
      add(lane, span.begin, span.end,
          {0, 0, waited_for(span), "waits for " + waited_for(span), role, kWaiting});
    }
    for (const Span& step : trace_.spans) {
      if (step.kind == Span::Kind::kStep && step.warp == roles_[role].warps.front())
        tints_.of(role, step.label);
      if (!mine(step, Span::Kind::kStep)) continue;
      uint64_t begin = step.begin;
      const auto cut = [&](uint64_t end) {
        if (begin < end)
          add(lane, begin, end, {0, 0, step.label, step.label, role, tints_.of(role, step.label)});
      };
      for (const Span* wait : waits) {
        if (wait->end <= begin || wait->begin >= step.end) continue;
        cut(wait->begin);
        begin = wait->end;
      }
      cut(step.end);
    }
    sort_and_merge(lane);
    lanes_.push_back(std::move(lane));
  }

  void add_engine(Span::Kind kind, const std::string& name) {
    Lane lane{name, "", {}, nullptr};
    uint64_t busy = 0;
    for (const Span& span : trace_.spans) {
      if (span.kind != kind || !visible(span)) continue;
      busy += std::min(span.end, to_) - std::max(span.begin, from_);
      const std::size_t role = role_of(span.warp);
      const std::string label = span.step.empty() ? span.label : span.step;
      const std::string tooltip =
          span.label + " of " + roles_[role].name + (span.step.empty() ? "" : ", " + span.step);
      add(lane, span.begin, span.end,
          {0, 0, label, tooltip, role, span.step.empty() ? 0 : tints_.of(role, span.step)});
    }
    lane.note = std::to_string((busy * 100 + (to_ - from_) / 2) / (to_ - from_)) + " % busy";
    sort_and_merge(lane);
    lanes_.push_back(std::move(lane));
  }

  std::size_t role_of(std::size_t warp) const {
    for (std::size_t role = 0; role < roles_.size(); ++role) {
      const std::vector<std::size_t>& warps = roles_[role].warps;
      if (std::find(warps.begin(), warps.end(), warp) != warps.end()) return role;
    }
    return 0;
  }

  void sort_and_merge(Lane& lane) const {
    std::stable_sort(lane.bars.begin(), lane.bars.end(),
                     [](const Bar& a, const Bar& b) { return a.begin < b.begin; });
    // The same work again with hardly a gap: the rows of a tile, the products of a step. Two rounds of a step
    // of a role stay two.
    const bool engine = !lane.swatch;
    std::vector<Bar> merged;
    for (Bar& bar : lane.bars) {
      const bool again =
          !merged.empty() && merged.back().tooltip == bar.tooltip && merged.back().tint == bar.tint;
      if (again && x(bar.begin) - x(merged.back().end) <= kSameBar &&
          (engine || x(bar.end) - x(bar.begin) < kDrawnAlone)) {
        merged.back().end = std::max(merged.back().end, bar.end);
      } else {
        merged.push_back(std::move(bar));
      }
    }
    lane.bars = std::move(merged);
  }

  // ---- From bars to SVG ---------------------------------------------------------------------------------------
  int64_t x(uint64_t clock) const {
    return kLeft + int64_t((clock - from_) * uint64_t(kRight - kLeft) / (to_ - from_));
  }

  static std::string text(int64_t x, int64_t y, const std::string& words, const std::string& more = "") {
    return "<text" + attribute("x", px(x)) + attribute("y", px(y)) + more + ">" + escaped(words) +
           "</text>\n";
  }

  std::string head(int64_t height) const {
    std::string lanes;
    for (const Lane& lane : lanes_) lanes += (lanes.empty() ? "" : ", ") + lane.name;
    constexpr const char* kGrey = " font-size=\"12.5\" fill=\"#444444\"";
    const std::string size = attribute("width", px(kWidth)) + attribute("height", px(height));
    return "<svg xmlns=\"http://www.w3.org/2000/svg\"" + size +
           attribute("viewBox", "0 0 " + px(kWidth) + " " + px(height)) +
           " role=\"img\" aria-labelledby=\"title desc\" font-family=\"Helvetica, Arial, 'DejaVu Sans', "
           "sans-serif\" font-size=\"11\" fill=\"#1a1a1a\">\n"
           "<title id=\"title\">" +
           escaped(options_.title) +
           "</title>\n"
           "<desc id=\"desc\">What the first block does between clocks " +
           std::to_string(from_) + " and " + std::to_string(to_) +
           " of a model of time. Lanes from top to bottom: " + escaped(lanes) +
           ".</desc>\n"
           "<defs><pattern id=\"wait\" width=\"6\" height=\"6\" patternUnits=\"userSpaceOnUse\">"
           "<rect width=\"6\" height=\"6\" fill=\"#f3f3f1\"/>"
           "<path d=\"M-1 1l2 -2M0 6l6 -6M5 7l2 -2\" stroke=\"#d4d4d0\" "
           "stroke-width=\"1.2\"/></pattern></defs>\n"
           "<rect" +
           size + " rx=\"6\" fill=\"#fdfdfb\"/>\n" +
           text(200, 300, options_.title, " font-size=\"16\" font-weight=\"bold\"") +
           text(200, 500,
                "First block of the grid. Clocks come from a coarse model of Hopper: they show who waits for "
                "whom, and are no measurement.",
                kGrey) +
           "<rect x=\"20\" y=\"61\" width=\"26\" height=\"14\" fill=\"url(#wait)\"" +
           attribute("stroke", kWaitLine) + " stroke-width=\"0.8\"/>\n" +
           text(520, 725, "waits for the barrier or instruction that is named", kGrey) +
           text(3800, 725, "Copies and products have the colour of the role that issued them.", kGrey);
  }

  /// Names the steps, for bars too narrow to say theirs. Returns where the last row is.
  int64_t key(int64_t y) {
    int64_t at = kLeft;
    for (std::size_t role = 0; role < roles_.size(); ++role) {
      std::map<std::string, std::size_t> tints;
      for (const Lane& lane : lanes_)
        for (const Bar& bar : lane.bars)
          if (bar.role == role && bar.tint != kWaiting) tints[bar.label] = bar.tint;
      for (const auto& [label, tint] : tints) {
        const int64_t width = 380 + int64_t(label.size()) * (kLetter + 4);
        if (at + width > kRight && at > kLeft) at = kLeft, y += 200;
        out_ += "<rect" + attribute("x", px(at)) + attribute("y", px(y - 95)) +
                " width=\"11\" height=\"11\"" + attribute("fill", colours_[role]->tints[tint]) +
                attribute("stroke", colours_[role]->line) + "/>\n" +
                text(at + 160, y, label, " font-size=\"11.5\"");
        at += width;
      }
    }
    return y;
  }

  void ticks(int64_t bottom) {
    uint64_t step = 1;
    for (const uint64_t decade :
         {uint64_t(1), uint64_t(10), uint64_t(100), uint64_t(1000), uint64_t(10000), uint64_t(100000),
          uint64_t(1000000), uint64_t(10000000), uint64_t(100000000)})
      for (const uint64_t factor : {1, 2, 5})
        if (step == 1 && (to_ - from_) / (decade * factor) <= 12) step = decade * factor;
    std::string lines;
    for (uint64_t clock = (from_ + step - 1) / step * step; clock <= to_; clock += step) {
      lines += "M" + px(x(clock)) + " " + px(kTop - 60) + "V" + px(bottom - 40);
      out_ += text(x(clock), bottom + 130, std::to_string(clock),
                   " font-size=\"11.5\" text-anchor=\"middle\" fill=\"#444444\"");
    }
    out_ += "<path" + attribute("d", lines) + " fill=\"none\" stroke=\"#dededa\" stroke-width=\"1\"/>\n";
    out_ += text(200, bottom + 130, "modelled clocks", " font-size=\"12.5\" fill=\"#444444\"");
  }

  void draw_lane(const Lane& lane, int64_t y) {
    const int64_t name_x = lane.swatch ? 380 : 200;
    if (lane.swatch) {
      out_ += "<rect x=\"20\"" + attribute("y", px(y + 20)) + " width=\"11\" height=\"11\"" +
              attribute("fill", lane.swatch->tints[1]) + attribute("stroke", lane.swatch->line) + "/>\n";
    }
    out_ += text(name_x, y + 120, lane.name, " font-size=\"12.5\" font-weight=\"bold\"");
    if (!lane.note.empty()) out_ += text(name_x, y + 260, lane.note, " fill=\"#444444\"");
    out_ += "<rect" + attribute("x", px(kLeft)) + attribute("y", px(y)) +
            attribute("width", px(kRight - kLeft)) + attribute("height", px(kLaneHeight)) +
            " fill=\"#ffffff\" stroke=\"#c8c8c4\" stroke-width=\"0.8\"/>\n";
    std::map<std::pair<std::size_t, std::size_t>, std::string> narrow;  // by colour
    for (const Bar& bar : lane.bars) {
      if (x(bar.end) - x(bar.begin) >= kDrawnAlone) continue;
      const std::size_t role = bar.tint == kWaiting ? 0 : bar.role;
      narrow[{role, bar.tint}] += "M" + px(x(bar.begin)) + " " + px(y + kLaneHeight / 2) + "h" +
                                  px(std::max<int64_t>(x(bar.end) - x(bar.begin), 2));
    }
    for (const auto& [colour, path] : narrow) {
      const char* stroke =
          colour.second == kWaiting ? "#dcdcd8" : colours_[colour.first]->tints[colour.second];
      out_ += "<path" + attribute("d", path) + attribute("stroke", stroke) +
              attribute("stroke-width", px(kLaneHeight - 20)) + "/>\n";
    }
    for (const Bar& bar : lane.bars)
      if (x(bar.end) - x(bar.begin) >= kDrawnAlone) draw(bar, y);
  }

  void draw(const Bar& bar, int64_t y) {
    const int64_t left = x(bar.begin), width = x(bar.end) - left;
    const bool waiting = bar.tint == kWaiting;
    const Colour& colour = *colours_[bar.role];
    out_ += "<g><title>" + escaped(bar.tooltip) + ": clocks " + std::to_string(bar.begin) + " to " +
            std::to_string(bar.end) + "</title><rect" + attribute("x", px(left)) +
            attribute("y", px(y + 10)) + attribute("width", px(width)) +
            attribute("height", px(kLaneHeight - 20)) +
            attribute("fill", waiting ? "url(#wait)" : colour.tints[bar.tint]) +
            attribute("stroke", waiting ? kWaitLine : colour.line) + " stroke-width=\"0.8\"/>";
    std::string label = bar.label;
    if (!fits(label, width)) label = short_label(bar);
    if (!label.empty() && fits(label, width)) {
      out_ += "<text" + attribute("x", px(left + width / 2)) + attribute("y", px(y + 190)) +
              " text-anchor=\"middle\"" + (waiting ? " fill=\"#555555\"" : "") + ">" + escaped(label) +
              "</text>";
    }
    out_ += "</g>\n";
  }

  /// "[C2]" of "[C2] softmax", "full[1]" of "s.full[1]", or nothing.
  static std::string short_label(const Bar& bar) {
    if (bar.tint != kWaiting) return bar.label.substr(0, bar.label.find(']') + 1);
    return bar.label.ends_with(']') ? bar.label.substr(bar.label.rfind('.') + 1) : "";
  }
  static bool fits(const std::string& label, int64_t width) {
    return int64_t(label.size()) * kLetter + 40 <= width;
  }

  const Trace& trace_;
  const TimelineOptions& options_;
  uint64_t from_, to_;
  std::vector<Role> roles_;
  std::vector<const Colour*> colours_;  // of each role
  Tints tints_;
  std::vector<Lane> lanes_;
  std::string out_;
};

}  // namespace

std::string timeline_svg(const Trace& trace, const TimelineOptions& options) {
  return Drawing(trace, options).svg();
}

}  // namespace dsa::harness

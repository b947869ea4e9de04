#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

#include "check.hpp"

namespace dsa::harness {

namespace {

constexpr int kShown = 5;  ///< wrong elements that are printed
constexpr int kMapSize = 16;

std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.9g", value);
  return text;
}

/// Names of the axes of our outputs; the last axis of the wide ones is a plain number.
std::vector<std::string> axis_names(const std::string& name, std::size_t rank) {
  if (rank == 4 && (name == "out" || name == "dq")) return {"batch", "query", "head", ""};
  if (rank == 4 && (name == "dkv" || name == "dkv_f32")) return {"batch", "row", "group", ""};
  if (rank == 3) return {"batch", "query", "head"};
  if (rank == 2 && name == "logits") return {"query", "column"};
  if (rank == 2 && name == "indices") return {"row", "slot"};
  if (rank == 2) return {"row", ""};
  if (rank == 1) return {"row"};
  return std::vector<std::string>(rank);
}

/// "out[query 3, head 17, 402]"; a batch or group axis of extent 1 is left out.
std::string coordinates(const std::string& name, const std::vector<int64_t>& shape, int64_t flat) {
  const std::vector<std::string> names = axis_names(name, shape.size());
  std::string text;
  for (std::size_t axis = shape.size(); axis-- > 0;) {
    const int64_t at = flat % shape[axis];
    flat /= shape[axis];
    if (shape[axis] == 1 && (names[axis] == "batch" || names[axis] == "group")) continue;
    const std::string label = names[axis].empty() ? "" : names[axis] + " ";
    text = label + std::to_string(at) + (text.empty() ? "" : ", ") + text;
  }
  return name + "[" + text + "]";
}

/// Which of rows x width elements are wrong, coarsened to at most 16 x 16 fields.
class ErrorMap {
 public:
  ErrorMap(int64_t rows, int64_t width)
      : rows_(rows),
        width_(width),
        down_(std::min<int64_t>(rows, kMapSize)),
        across_(std::min<int64_t>(width, kMapSize)) {}

  void count(int64_t row, int64_t column, bool wrong) {
    const std::size_t field = std::size_t(row * down_ / rows_ * kMapSize + column * across_ / width_);
    ++all_[field];
    wrong_[field] += wrong;
  }

  std::string text() const {
    std::string text = "where ('.' none, '+' some, '#' all wrong; " + std::to_string(rows_) + " rows down, " +
                       std::to_string(width_) + " columns across):";
    for (int64_t i = 0; i < down_; ++i) {
      text += "\n  ";
      for (int64_t j = 0; j < across_; ++j) {
        const std::size_t field = std::size_t(i * kMapSize + j);
        text += wrong_[field] == 0 ? '.' : wrong_[field] == all_[field] ? '#' : '+';
      }
    }
    return text;
  }

 private:
  int64_t rows_, width_, down_, across_;
  std::array<int64_t, kMapSize * kMapSize> all_{}, wrong_{};
};

bool same_special(double got, double want) {
  return std::isnan(want) ? std::isnan(got) : got == want;  // infinities of one sign are equal
}

bool exactly_equal(double got, double want) {
  if (std::isnan(want)) return std::isnan(got);
  return got == want && std::signbit(got) == std::signbit(want);
}

/// One row, or one part of a row between two splits.
struct Part {
  int64_t begin, end;  ///< columns
  double rms = 0;      ///< of the expected finite values
  bool zero = true;    ///< all expected values are zero, and nothing excuses others
};

class Comparison {
 public:
  Comparison(const Tensor& got, const Expected& want, const Tolerance& tolerance)
      : got_(got),
        want_(want),
        tolerance_(tolerance),
        width_(row_width(want.shape)),
        rows_(width_ == 0 ? 0 : int64_t(want.values.size()) / width_),
        map_(rows_, width_) {}

  Verdict run() {
    for (int64_t row = 0; row < rows_; ++row) {
      const Expected::Span window =
          want_.windows.empty() ? Expected::Span{0, width_} : want_.windows[std::size_t(row)];
      int64_t begin = window.begin;
      for (int64_t split : tolerance_.splits) {
        if (split <= begin || split >= window.end) continue;
        check_part(row, {begin, split});
        begin = split;
      }
      check_part(row, {begin, window.end});
    }
    return verdict();
  }

 private:
  int64_t flat(int64_t row, int64_t column) const {
    return (want_.rows.empty() ? row : want_.rows[std::size_t(row)]) * width_ + column;
  }
  double want(int64_t row, int64_t column) const { return want_.values[std::size_t(row * width_ + column)]; }
  double noise(int64_t row, int64_t column) const {
    return tolerance_.noise.empty() ? 0 : tolerance_.noise[std::size_t(row * width_ + column)];
  }
  static double of_row(const std::vector<double>& values, int64_t row) {
    return values.empty() ? 0 : values[std::size_t(row)];
  }

  void check_part(int64_t row, Part part) {
    double squares = 0;
    for (int64_t j = part.begin; j < part.end; ++j) {
      const double b = want(row, j);
      part.zero = part.zero && float(b) == 0 && noise(row, j) == 0;
      if (std::isfinite(b)) squares += b * b;
    }
    part.rms = std::sqrt(squares / double(std::max<int64_t>(1, part.end - part.begin)));
    const int64_t before = wrong_;
    std::vector<bool> wrong(std::size_t(std::max<int64_t>(0, part.end - part.begin)));
    for (int64_t j = part.begin; j < part.end; ++j) {
      wrong[std::size_t(j - part.begin)] = !element_passes(row, j, part);
    }
    // The row tests add nothing to a row that has already failed, or that holds NaN or infinity.
    if (wrong_ == before && !tolerance_.exact) check_row(row, part, wrong);
    for (int64_t j = part.begin; j < part.end; ++j) map_.count(row, j, wrong[std::size_t(j - part.begin)]);
  }

  bool element_passes(int64_t row, int64_t column, const Part& part) {
    const double a = got_.at(flat(row, column)), b = want(row, column);
    ++compared_;
    double error = 0, bound = 0;
    bool pass;
    if (tolerance_.exact) {
      pass = exactly_equal(a, b);
      error = std::fabs(a - b);
    } else if (!std::isfinite(a) || !std::isfinite(b)) {
      pass = same_special(a, b);
    } else if (part.zero && tolerance_.exact_zero_rows && tolerance_.element_bound.empty()) {
      pass = a == 0;
      error = std::fabs(a);
    } else {
      error = std::fabs(a - b);
      const double slack = of_row(tolerance_.row_slack, row);
      bound = tolerance_.atol + (tolerance_.rtol + slack) * std::fabs(b) +
              (tolerance_.rms + slack) * part.rms + noise(row, column);
      if (!tolerance_.element_bound.empty())
        bound += tolerance_.element_bound[std::size_t(row * width_ + column)];
      pass = !tolerance_.elementwise || error <= bound;
    }
    if (pass) return true;
    ++wrong_;
    if (shown_.size() < kShown) shown_.push_back(element_text(row, column, a, b));
    const double badness = std::isfinite(a) && std::isfinite(b) ? error / std::max(bound, 1e-300) : HUGE_VAL;
    if (badness > worst_) {
      worst_ = badness;
      worst_text_ = element_text(row, column, a, b) +
                    (bound > 0 && std::isfinite(badness)
                         ? " (error " + number(error) + ", allowed " + number(bound) + ")"
                         : "");
    }
    return false;
  }

  void check_row(int64_t row, const Part& part, std::vector<bool>& wrong) {
    if (tolerance_.row_distance == 0 && tolerance_.row_error == 0) return;
    double difference = 0, got_squares = 0, want_squares = 0, allowed_noise = 0;
    for (int64_t j = part.begin; j < part.end; ++j) {
      const double a = got_.at(flat(row, j)), b = want(row, j);
      if (!std::isfinite(b)) continue;  // then a is the same: it has passed
      allowed_noise += std::pow(noise(row, j) + kRowFloor, 2);
      difference += (a - b) * (a - b);
      got_squares += a * a;
      want_squares += b * b;
    }
    const double slack = of_row(tolerance_.row_slack, row);
    const double sum = got_squares + want_squares;
    // |a-b|^2 / (|a|^2+|b|^2) is 1 - 2<a,b> / (|a|^2+|b|^2).
    if (tolerance_.row_distance > 0 &&
        !(difference <= (tolerance_.row_distance + slack * slack) * sum + allowed_noise)) {
      fail_row(row, part,
               "1 - 2<a,b>/(|a|^2+|b|^2) is " + number(difference / sum) + ", allowed " +
                   number(tolerance_.row_distance + slack * slack),
               wrong);
    }
    const double allowed_error = tolerance_.row_error + slack;
    if (tolerance_.row_error > 0 &&
        !(difference <= allowed_error * allowed_error * want_squares + allowed_noise)) {
      fail_row(row, part,
               "relative error |got - want| / |want| is " + number(std::sqrt(difference / want_squares)) +
                   ", allowed " + number(allowed_error),
               wrong);
    }
  }

  void fail_row(int64_t row, const Part& part, const std::string& what, std::vector<bool>& wrong) {
    if (row != last_wrong_row_) ++wrong_rows_;
    last_wrong_row_ = row;
    std::fill(wrong.begin(), wrong.end(), true);
    if (row_text_.empty()) {
      row_text_ = "row of " + coordinates(want_.name, want_.shape, flat(row, part.begin)) + ": " + what;
    }
  }

  std::string element_text(int64_t row, int64_t column, double a, double b) const {
    return coordinates(want_.name, want_.shape, flat(row, column)) + " got " + number(a) + " want " +
           number(b);
  }

  Verdict verdict() const {
    if (wrong_ == 0 && wrong_rows_ == 0) return {};
    std::string text = want_.name + ": ";
    if (wrong_ > 0) {
      text += std::to_string(wrong_) + " of " + std::to_string(compared_) + " elements are wrong; worst " +
              worst_text_;
      for (const std::string& element : shown_) text += "\n" + element;
    }
    if (wrong_rows_ > 0) {
      text += (wrong_ > 0 ? "\n" : "") + std::to_string(wrong_rows_) + " of " + std::to_string(rows_) +
              " rows are too far off as a whole; the first: " + row_text_;
    }
    return {false, text + "\n" + map_.text()};
  }

  static constexpr double kRowFloor = 1e-30;  ///< where squares would underflow

  const Tensor& got_;
  const Expected& want_;
  const Tolerance& tolerance_;
  int64_t width_, rows_;
  ErrorMap map_;
  int64_t compared_ = 0, wrong_ = 0, wrong_rows_ = 0, last_wrong_row_ = -1;
  double worst_ = -1;
  std::string worst_text_, row_text_;
  std::vector<std::string> shown_;
};

}  // namespace

int64_t row_width(const std::vector<int64_t>& shape) {
  return shape.size() < 2 ? 1 : shape.back();
}

Verdict compare(const Tensor& got, const Expected& want, const Tolerance& tolerance) {
  if (got.shape != want.shape) {
    return {false, want.name + ": shape " + shape_text(got.shape) + ", expected " + shape_text(want.shape)};
  }
  return Comparison(got, want, tolerance).run();
}

}  // namespace dsa::harness

/// @file fuzz.cpp
/// Every top-k rung on rows that nobody chose: sizes, windows, alignments and values from a seed, judged exactly.
///
///     topk_fuzz                                         a few thousand rows on the emulator, as in CI
///     topk_fuzz --device gpu --rows 5000000             millions on the chip
///     topk_fuzz --seed 7 --batch 123 --step 04_...      one batch again, as a failure prints it
///     topk_fuzz --saboteurs                             the same rows against selectors that are wrong: each must be caught
///
/// A batch is one launch: rows of different kinds side by side. A row's kind is how its values are made (kKinds).
#include <CLI/CLI.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <map>

#include "cuda/common/topk_tiles.hpp"
#include "cuda/harness/check.hpp"
#include "cuda/harness/generate.hpp"
#include "cuda/harness/parallel.hpp"
#include "reference/topk.hpp"
#include "reference/window.hpp"

using namespace dsa;
using namespace dsa::harness;

namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

// ---- Random numbers -----------------------------------------------------------------------------------------
/// A stream of numbers; streams of different seeds have nothing in common.
struct Random {
  uint64_t seed, at = 0;
  uint64_t bits() { return generate::hash(seed, at++); }
  int64_t below(int64_t n) { return int64_t(bits() % uint64_t(n)); }
  bool one_in(int64_t n) { return below(n) == 0; }
  double uniform() { return double(bits() >> 11) * 0x1p-53; }
  float normal() { return float(std::sqrt(-2 * std::log(1 - uniform())) * std::cos(6.283185307179586 * uniform())); }
  int64_t log_uniform(int64_t most) { return int64_t(std::exp2(uniform() * std::log2(double(most) + 1))); }
  template <class T, std::size_t n> T pick(const T (&values)[n]) { return values[below(n)]; }
};

// ---- Kinds of rows --------------------------------------------------------------------------------------------
struct Row {
  float* x;
  int n, k;
  Random random;
};

/// `count` values for which `make` is called, at places that the stream chooses; the rest from `others`.
template <class Make, class Others> void scatter(Row& r, int64_t count, const Make& make, const Others& others) {
  for (int i = 0; i < r.n; ++i) r.x[i] = i < count ? make() : others();
  for (int i = r.n; i > 1; --i) std::swap(r.x[i - 1], r.x[r.random.below(i)]);
}

template <class Make> void each(Row& r, const Make& make) {
  for (int i = 0; i < r.n; ++i) r.x[i] = make(i);
}

float magnitude(Random& random) { return std::ldexp(1.0f, int(random.below(60)) - 30); }

struct Kind {
  const char* name;
  void (*make)(Row&);
};

const Kind kKinds[] = {
    {"normal", [](Row& r) { each(r, [&](int) { return r.random.normal(); }); }},
    {"scaled normal", [](Row& r) {
       const float scale = magnitude(r.random);
       each(r, [&](int) { return scale * r.random.normal(); });
     }},
    {"concentrated", [](Row& r) { each(r, [&](int) { return std::fabs(100 + 10 * r.random.normal()); }); }},
    {"one 8-bit bin", [](Row& r) { each(r, [&](int) { return float(1 + 0.245 * r.random.uniform()); }); }},
    {"one 11-bit bin", [](Row& r) { each(r, [&](int) { return float(1 + 0x1p-5 * r.random.uniform()); }); }},
    {"equal in fp16", [](Row& r) {
       const float base = magnitude(r.random) * (r.random.one_in(2) ? -1 : 1);
       each(r, [&](int) { return float(base * (1 + 0x1p-11 * r.random.uniform())); });
     }},
    {"low bits only", [](Row& r) {
       const uint32_t base = uint32_t(r.random.bits()) & 0xbffffc00u;
       each(r, [&](int) { return std::bit_cast<float>(base | uint32_t(r.random.below(1024))); });
     }},
    {"all equal", [](Row& r) {
       const float values[] = {0, -0.0f, 1, -3, 1e30f, -1e-40f, 65504, kInf, -kInf};
       const float value = r.random.pick(values);
       each(r, [&](int) { return value; });
     }},
    {"plateau", [](Row& r) {
       const int64_t winners[] = {0, 1, r.k / 4, r.k - 1, r.k, r.k + 1};
       scatter(r, r.random.pick(winners), [&] { return float(1 + r.random.uniform()); }, [] { return 0.f; });
     }},
    {"relu", [](Row& r) {
       scatter(r, r.n / 10, [&] { return std::fabs(r.random.normal()); }, [&] { return r.random.one_in(2) ? 0.f : -0.f; });
     }},
    {"threshold at a bin's edge", [](Row& r) {
       const float edge = magnitude(r.random);
       scatter(r, r.k + r.random.below(3) - 1, [&] { return float(edge * (1 + r.random.uniform())); },
               [&] { return float(edge * (1 - 0x1p-24 - r.random.uniform() / 2)); });
     }},
    {"at a wide bin's edge", [](Row& r) {   // see wide_bin in cases_topk.cpp
       const double edges[] = {56320, 49152, -0x1.08p-16, -0x1.4p-16, 65504, 65520, -65520};
       const double edge = r.random.pick(edges);
       scatter(r, r.k + r.random.below(3) - 1,
               [&] { return float(edge > 0 ? edge * (1 + 3 * r.random.uniform())
                                   : r.random.one_in(9) ? -1e-45 : edge * r.random.uniform()); },
               [&] { return float(edge - std::fabs(edge) * (0.001 + r.random.uniform() / 64)); });
     }},
    {"few values", [](Row& r) { each(r, [&](int) { return float(r.random.below(4)) - 1; }); }},
    {"subnormal", [](Row& r) {
       each(r, [&](int) {
         return float(r.random.below(2000) - 1000) * std::numeric_limits<float>::denorm_min();
       });
     }},
    {"extreme", [](Row& r) {
       const float values[] = {7e4f, -7e4f, 1e30f, -1e30f, kInf, -kInf, 0, -0.0f, 3.4028235e38f, -3.4028235e38f,
                               65504, -65504, 65519.9f, 65520, 57343.996f, 57344, 0x1p-16f, 0x1p-24f, -0x1p-16f};
       each(r, [&](int) { return r.random.one_in(3) ? r.random.pick(values) : r.random.normal(); });
     }},
    {"huge", [](Row& r) {
       each(r, [&](int) { return float((r.random.one_in(2) ? 5e4 : -5e4) * (1 + 3 * r.random.uniform())); });
     }},
    {"NaN", [](Row& r) {
       each(r, [&](int) {
         return r.random.one_in(2) ? std::bit_cast<float>(0x7f800001u | uint32_t(r.random.bits()) << 31) : r.random.normal();
       });
     }},
    {"mostly -inf", [](Row& r) {
       scatter(r, r.random.below(2 * r.k + 1), [&] { return r.random.normal(); }, [] { return -kInf; });
     }},
    {"few below fp16", [](Row& r) {   // which all round to -inf, and -inf itself is there, too
       const float values[] = {-7e4f, -1e30f, -3.4028235e38f};
       const float value = r.random.pick(values), other = r.random.one_in(2) ? value : r.random.pick(values);
       scatter(r, r.random.below(r.k + 1), [&] { return r.random.normal(); },
               [&] { return r.random.one_in(3) ? -kInf : r.random.one_in(2) ? value : other; });
     }},
    {"any bits", [](Row& r) { each(r, [&](int) { return std::bit_cast<float>(uint32_t(r.random.bits())); }); }},
    {"around one value", [](Row& r) {
       const uint32_t base = uint32_t(r.random.bits()) & 0xbfffe000u;   // where the low 13 bits roll over
       each(r, [&](int) { return std::bit_cast<float>(base + uint32_t(r.random.below(41)) - 20); });
     }},
    {"alike neighbours", [](Row& r) {   // a sample of the columns is worth less than it seems
       const int64_t runs[] = {4, 8, 64, 1000};
       const int64_t run = r.random.pick(runs);
       float value = 0;
       each(r, [&](int i) { return value = i % run ? value : r.random.normal(); });
     }},
    {"period of 64", [](Row& r) {
       const int spike = int(r.random.below(64));
       each(r, [&](int i) { return r.random.normal() + (i % 64 == spike ? 10 : 0); });
     }},
    {"rising", [](Row& r) { each(r, [&](int i) { return float(i); }); }},
    {"falling", [](Row& r) { each(r, [&](int i) { return float(-i); }); }},
    {"rising in one bin", [](Row& r) { each(r, [&](int i) { return float(1 + double(i) / r.n * 0x1p-5); }); }},
    {"organ pipe", [](Row& r) { each(r, [&](int i) { return float(std::min(i, r.n - 1 - i)); }); }},
    {"one outlier", [](Row& r) {
       each(r, [&](int) { return r.random.normal(); });
       if (r.n) r.x[r.random.below(r.n)] = 1e30f;
     }},
    {"spikes at boundaries", [](Row& r) {
       each(r, [&](int i) {
         const bool spike = i >= r.n - 3 || i % 2048 < 2 || i % 256 == 255;
         return float(r.random.uniform()) + (spike ? 10.f : 0.f);
       });
     }},
    {"capacity probe", [](Row& r) {
       const int64_t sizes[] = {511, 512, 513, 1024, 2047, 2048, 2049, 4095, 4096, 4097};
       const double width = r.random.one_in(2) ? 0x1p-5 : 0x1p-10;
       const int64_t members = r.random.pick(sizes), above = std::min<int64_t>(r.k / 2, r.n / 4);
       int64_t made = 0;
       scatter(r, members + above,
               [&] { return made++ < members ? float(1 + width * r.random.uniform()) : float(2 + r.random.uniform()); },
               [&] { return float(r.random.uniform() / 2); });
     }},
    {"a crowd of ties", [](Row& r) {   // see crowd in cases_topk.cpp
       const int64_t step = int64_t(1) << r.random.below(8);
       each(r, [&](int) {
         if (r.random.one_in(10)) return std::bit_cast<float>(uint32_t(0x3fc0000f + step * r.random.below(40)));
         return float(r.random.one_in(50) ? 2 + r.random.uniform() : r.random.uniform() / 2);
       });
     }},
    {"misleading sample", [](Row& r) {   // where rung 6 looks first, everything is larger
       each(r, [&](int i) { return r.random.normal() + (is_sampled(i, r.n) ? 10 : 0); });
     }},
};

// ---- A batch ----------------------------------------------------------------------------------------------------
struct Batch {
  Problem problem;
  std::vector<const Kind*> kinds;
};

std::pair<int32_t, int32_t> make_window(Random& random, int n, int k) {
  const auto column = [&] { return int32_t(random.below(n + 1)); };
  switch (random.below(8)) {
    case 0: return {0, n};
    case 1: return {column(), n};
    case 2: return {int32_t(random.below(9)), n - int32_t(random.below(9))};
    case 3: return {column(), column()};                              // inverted, half of the time
    case 4: return {-int32_t(random.below(100)), int32_t(n + random.below(100))};
    case 5: {
      const int32_t first = column();
      return {first, int32_t(first + k - 1 + random.below(3))};       // around topk columns
    }
    case 6: return {std::numeric_limits<int32_t>::min(), std::numeric_limits<int32_t>::max()};
    default: return {int32_t(random.below(4)), n};
  }
}

/// @param elements  about how many logits
Batch make_batch(uint64_t seed, int64_t max_n, int64_t max_rows, int64_t elements) {
  Random random{seed};
  TopkArgs a;
  const int sizes[] = {2048, 4096, 8192, 1024, 6144, 16384};
  a.n = int(random.one_in(8) ? random.pick(sizes) + random.below(3) - 1 : random.log_uniform(max_n));
  a.n = int(std::min<int64_t>(a.n, max_n));
  const int ks[] = {1, 2, 63, 64, 512, 1024, 2048, 4096, a.n, a.n + 1, a.n / 2 + 1, std::max(a.n - 1, 1)};
  a.topk = std::max(1, random.pick(ks));
  if (!random.one_in(4)) a.topk = std::min(a.topk, std::max(a.n / 3, 1));   // where there is a choice to make
  const bool long_rows = random.one_in(8);       // what rung 6 does not leave to others: long for topk, more rows than SMs
  if (long_rows) {
    a.n = int(max_n - random.below(max_n / 2));
    a.topk = std::min(a.topk, std::max(a.n / 12, 1));
  }
  a.rows = int(std::clamp<int64_t>(elements / std::max(a.n, 1), long_rows ? 4 : 1, max_rows));
  a.deterministic = random.one_in(2);
  a.logits_stride = a.n + (random.one_in(2) ? random.below(9) : (4 - a.n % 4) % 4);

  Batch batch;
  batch.problem.args = a;
  Tensor logits(DType::kF32, {a.rows, a.n});
  std::vector<int32_t> ks_of(std::size_t(a.rows)), ke_of(std::size_t(a.rows));
  batch.kinds.resize(std::size_t(a.rows));
  const uint64_t row_seed = random.bits();
  parallel_for(a.rows, 16, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      Row row{logits.data<float>() + i * a.n, a.n, a.topk, {generate::hash(row_seed, uint64_t(i))}};
      const Kind& kind = kKinds[row.random.below(std::size(kKinds))];
      batch.kinds[std::size_t(i)] = &kind;
      kind.make(row);
      const auto [ks, ke] = make_window(row.random, a.n, a.topk);
      ks_of[std::size_t(i)] = ks, ke_of[std::size_t(i)] = ke;
      if (row.random.one_in(2)) {                                     // outside of the window: what must not matter
        const reference::Window window = reference::clamp_window(ks, ke, a.n);
        for (int j = 0; j < a.n; ++j)
          if (j < window.begin || j >= window.end) row.x[j] = j % 2 ? kInf : std::nanf("");
      }
    }
  });
  batch.problem.inputs["logits"] = std::move(logits);
  batch.problem.inputs["ks"] = generate::integers({a.rows}, ks_of);
  batch.problem.inputs["ke"] = generate::integers({a.rows}, ke_of);
  return batch;
}

// ---- Selectors that are wrong -------------------------------------------------------------------------------------
/// How a published kernel went wrong, on the CPU: candidates are made with `keep`, ranked by `rank`.
struct Saboteur {
  const char* name;
  int capacity;                                  ///< of the threshold's 8-bit bin; the rest is dropped
  uint32_t dropped_bits;                         ///< of the value, before ranking
  int first, last;                               ///< moves the window's ends
  bool takes_nan, splits_zeros;
};

const Saboteur kSaboteurs[] = {
    {"a candidate buffer that is clipped at 512", 512, 0, 0, 0, false, false},
    {"a candidate buffer that is clipped at 4096", 4096, 0, 0, 0, false, false},
    {"16 bits decide", 1 << 30, 13, 0, 0, false, false},
    {"the last bit does not count", 1 << 30, 1, 0, 0, false, false},
    {"one column too many", 1 << 30, 0, 0, 1, false, false},
    {"one column too few", 1 << 30, 0, 0, -1, false, false},
    {"starts one column late", 1 << 30, 0, 1, 0, false, false},
    {"NaN is the largest", 1 << 30, 0, 0, 0, true, false},
    {"-0 is below +0", 1 << 30, 0, 0, 0, false, true},
};
const Saboteur* saboteur = nullptr;

int sabotage(const Args& args, void*) {
  const auto& a = std::get<TopkArgs>(args);
  const auto key_of = [](float x) {
    uint32_t bits = std::bit_cast<uint32_t>(saboteur->splits_zeros ? x : x + 0.0f);
    bits = bits >> 31 ? ~bits : bits | 0x80000000u;
    return bits >> saboteur->dropped_bits;
  };
  parallel_for(a.rows, 16, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const float* x = a.logits + row * a.logits_stride;
      reference::Window w = reference::clamp_window(a.ks[row], a.ke[row], a.n);
      w.begin = std::clamp(w.begin + saboteur->first, 0, a.n);
      w.end = std::clamp(w.end + saboteur->last, 0, a.n);
      std::vector<std::pair<uint32_t, int>> found;
      for (int j = w.begin; j < w.end; ++j)
        if (x[j] > -kInf || (saboteur->takes_nan && std::isnan(x[j]))) found.emplace_back(~key_of(x[j]), j);
      std::stable_sort(found.begin(), found.end());
      const std::size_t k = std::min<std::size_t>(std::size_t(a.topk), found.size());
      if (k < found.size() && saboteur->dropped_bits == 0) {          // the bin of the k-th, in the order of columns
        const auto bin_of = [](uint32_t key) { return ~key >> 21; };
        const uint32_t bin = bin_of(found[k - 1].first);
        std::vector<std::pair<uint32_t, int>> kept, inside;
        for (const auto& f : found) (bin_of(f.first) == bin ? inside : kept).push_back(f);
        std::sort(inside.begin(), inside.end(), [](auto& p, auto& q) { return p.second < q.second; });
        if (int(inside.size()) > saboteur->capacity) inside.resize(std::size_t(saboteur->capacity));
        kept.insert(kept.end(), inside.begin(), inside.end());
        std::stable_sort(kept.begin(), kept.end());
        found = std::move(kept);
      }
      found.resize(std::min(k, found.size()));
      if (a.deterministic) std::sort(found.begin(), found.end(), [](auto& p, auto& q) { return p.second < q.second; });
      for (int j = 0; j < a.topk; ++j)
        a.indices[row * a.topk + j] = j < int(found.size()) ? found[std::size_t(j)].second : kInvalid;
    }
  });
  return 0;
}

// ---- The run ------------------------------------------------------------------------------------------------------
struct Options {
  std::string device = "emulator", step;
  int64_t rows = 2500, max_n = 12000, repeats = 1, batch = -1;
  uint64_t seed = 1;
  bool saboteurs = false;
};

struct Run {
  const Options& options;
  Device device;
  Machine& machine;
  int64_t elements, max_rows;
  int64_t rows = 0;
  std::map<std::string, int64_t> rows_of_kind;

  Batch make(int64_t number) const {
    return make_batch(generate::hash(options.seed, uint64_t(number)), options.max_n, max_rows, elements);
  }

  /// "" or what is wrong with one of the rungs.
  std::string check(int64_t number, const std::vector<RungEntry>& rungs) {
    const Batch batch = make(number);
    const auto& a = std::get<TopkArgs>(batch.problem.args);
    rows += a.rows;
    for (const Kind* kind : batch.kinds) ++rows_of_kind[kind->name];
    const Judge judge(batch.problem);
    if (device == Device::kEmulator) set_emulator_schedule(number % 4 == 3 ? "random" : "round_robin", uint64_t(number));
    for (const RungEntry& rung : rungs) {
      const CheckResult result = check_rung(rung, machine, batch.problem, judge, {int(options.repeats)});
      if (result.status == Status::kPassed || result.status == Status::kUnsupported) continue;
      std::string text = rung.name + ": " + status_name(result.status) + ": " + result.message;
      const std::size_t at = result.message.find("row ");
      if (at != std::string::npos) {
        const std::size_t row = std::strtoul(result.message.c_str() + at + 4, nullptr, 10);
        if (row < batch.kinds.size()) text += std::string("\n  that row: ") + batch.kinds[row]->name;
      }
      return text + "\n  " + describe(batch.problem.args) + " stride=" + std::to_string(a.logits_stride) +
             "\n  again: --seed " + std::to_string(options.seed) + " --batch " + std::to_string(number) +
             " --max-n " + std::to_string(options.max_n) + " --device " + options.device + " --step " + rung.name;
    }
    return "";
  }
};

int fuzz(const Options& options) {
  const Device device = options.device == "gpu" ? Device::kGpu : Device::kEmulator;
  if (const std::string why = unavailable(device); !why.empty()) {
    std::printf("topk_fuzz: no %s: %s\n", options.device.c_str(), why.c_str());
    return 4;
  }
  const std::unique_ptr<Machine> machine = open(device);
  const bool gpu = device == Device::kGpu;
  Run run{options, device, *machine, gpu ? int64_t(1) << 25 : int64_t(1) << 13, gpu ? 16384 : 12, 0, {}};

  if (options.saboteurs) {
    int missed = 0;
    for (const Saboteur& s : kSaboteurs) {
      saboteur = &s;
      const RungEntry rung{Stage::kTopk, Device::kEmulator, "saboteur", s.name, Accuracy::kExact, true, "",
                           [](const Args&) -> const char* { return nullptr; }, sabotage};
      std::string caught;
      run.rows = 0;
      for (int64_t number = 0; caught.empty() && run.rows < options.rows; ++number) caught = run.check(number, {rung});
      std::printf("%s  %s: after %lld rows\n", caught.empty() ? "MISSED" : "caught", s.name, (long long)run.rows);
      missed += caught.empty();
    }
    return missed ? 1 : 0;
  }

  std::vector<RungEntry> chosen;
  for (const RungEntry& rung : rungs())
    if (rung.stage == Stage::kTopk && rung.device == device && rung.name.find(options.step) != std::string::npos)
      chosen.push_back(rung);
  if (chosen.empty()) {
    std::printf("topk_fuzz: no step '%s'\n", options.step.c_str());
    return 2;
  }
  int failures = 0;
  for (int64_t number = std::max<int64_t>(options.batch, 0); run.rows < options.rows; ++number) {
    const std::string wrong = run.check(number, chosen);
    if (!wrong.empty()) std::printf("%s\n", wrong.c_str());
    failures += !wrong.empty();
    if (options.batch >= 0 || failures == 5) break;
  }
  std::printf("%lld rows, %zu steps, %d batches wrong. Rows by kind:", (long long)run.rows, chosen.size(), failures);
  for (const auto& [kind, rows] : run.rows_of_kind) std::printf(" %s %lld,", kind.c_str(), (long long)rows);
  std::printf("\n");
  return failures ? 1 : 0;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"Top-k rungs on random rows, judged exactly", "topk_fuzz"};
  Options options;
  app.add_option("--device", options.device, "emulator or gpu")->check(CLI::IsMember({"emulator", "gpu"}));
  app.add_option("--step", options.step, "Only steps whose name contains this");
  app.add_option("--rows", options.rows, "Rows in all, at least");
  app.add_option("--seed", options.seed, "Of everything");
  app.add_option("--max-n", options.max_n, "Longest row");
  app.add_option("--repeats", options.repeats, "Launches per batch; a repeatable rung must give the same bits");
  app.add_option("--batch", options.batch, "Only this batch");
  app.add_flag("--saboteurs", options.saboteurs, "Wrong selectors instead of the rungs");
  CLI11_PARSE(app, argc, argv);
  return fuzz(options);
}

#include "gpu_timer.hpp"

#include <algorithm>

#include "../cuda/harness/cuda_check.hpp"
#include "measure.hpp"
#include "text.hpp"
#include "yardsticks.hpp"

namespace dsa::bench {

namespace {

constexpr double kYardstickSampleSeconds = 0.25;

std::string bus_id_of(int device) {
  char id[32] = "";
  DSA_CUDA_CHECK(cudaDeviceGetPCIBusId(id, sizeof id, device));
  return id;
}

int current_device() {
  int device = 0;
  DSA_CUDA_CHECK(cudaGetDevice(&device));
  return device;
}

}  // namespace

struct GpuTimer::Impl {
  void* stream;
  cudaDeviceProp properties{};
  Sensors sensors;
  std::map<YardstickKind, std::unique_ptr<Yardstick>>
      yardsticks;  ///< made on first use; null: not in this build
  std::map<std::pair<YardstickKind, Regime>, double> last_rate;  ///< the newest of each

  explicit Impl(void* stream) : stream(stream), sensors(bus_id_of(current_device())) {
    DSA_CUDA_CHECK(cudaGetDeviceProperties(&properties, current_device()));
  }

  Yardstick* yardstick(YardstickKind kind) {
    const auto found = yardsticks.find(kind);
    if (found != yardsticks.end()) return found->second.get();
    return (yardsticks[kind] = make_yardstick(kind, stream)).get();
  }

  /// Notes the rate as well.
  Timing time(YardstickKind kind, Yardstick& yardstick, MeasureOptions options) {
    options.sample_s = std::min(options.sample_s, kYardstickSampleSeconds);
    Timing timing = measure([&](int64_t, void* on) { return yardstick.enqueue(on); }, stream, options, sensors);
    last_rate[{kind, options.regime}] = yardstick.amount() / timing.median_s;
    return timing;
  }

  /// FLOP/s or bytes/s now, or nullopt without that yardstick.
  std::optional<double> rate(YardstickKind kind, const MeasureOptions& options) {
    Yardstick* const present = yardstick(kind);
    if (!present) return std::nullopt;
    time(kind, *present, options);
    return last_rate.at({kind, options.regime});
  }

  /// The newest rate, or if there is none yet, the rate now.
  std::optional<double> rate_before(YardstickKind kind, const MeasureOptions& options) {
    const auto last = last_rate.find({kind, options.regime});
    return last == last_rate.end() ? rate(kind, options) : last->second;
  }
};

GpuTimer::GpuTimer(harness::Machine& machine) : impl_(new Impl(machine.stream())) {}
GpuTimer::~GpuTimer() = default;

Measured GpuTimer::time(const std::string& name, const RungEntry& rung, const std::vector<Args>& copies,
                        const Work& work, const MeasureOptions& options) {
  const YardstickKind kind = yardstick_for(copies.at(0), options.warm).kind;
  const Enqueue launch = [&](int64_t i, void* stream) {
    return rung.launch(copies[std::size_t(i) % copies.size()], stream);
  };
  const std::optional<double> before = impl_->rate_before(kind, options);
  const Timing timing = measure(launch, impl_->stream, options, impl_->sensors);
  const std::optional<double> after = impl_->rate(kind, options);
  std::optional<double> yardstick_rate;
  if (before && after) yardstick_rate = (*before + *after) / 2;
  return {make_row(name, work, timing, yardstick_rate), timing.samples_s};
}

Measured GpuTimer::time_yardstick(YardstickKind kind, const MeasureOptions& options) {
  const std::string name = result_name({"yardstick", yardstick_name(kind), "", regime_name(options.regime)});
  Yardstick* const present = impl_->yardstick(kind);
  if (!present) {
    ResultRow row;
    row.name = name;
    row.error = "this build has no cuBLASLt";
    return {row, {}};
  }
  const Timing timing = impl_->time(kind, *present, options);
  return {make_row(name, {yardstick_unit(kind), present->amount(), present->amount()}, timing, std::nullopt),
          timing.samples_s};
}

std::map<std::string, std::string> GpuTimer::context() const {
  std::map<std::string, std::string> context = impl_->sensors.context();
  context["gpu"] = impl_->properties.name;
  int version = 0;
  DSA_CUDA_CHECK(cudaRuntimeGetVersion(&version));
  context["cuda"] = text("%d.%d", version / 1000, version % 1000 / 10);
  return context;
}

double GpuTimer::l2_bytes() const {
  return impl_->properties.l2CacheSize;
}

}  // namespace dsa::bench

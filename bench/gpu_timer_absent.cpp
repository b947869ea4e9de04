#include "gpu_timer.hpp"

namespace dsa::bench {

struct GpuTimer::Impl {};

GpuTimer::GpuTimer(harness::Machine&) {
  throw std::runtime_error(harness::unavailable(Device::kGpu));
}
GpuTimer::~GpuTimer() = default;
Measured GpuTimer::time(const std::string&, const RungEntry&, const std::vector<Args>&, const Work&,
                        const MeasureOptions&) {
  return {};
}
Measured GpuTimer::time_yardstick(YardstickKind, const MeasureOptions&) {
  return {};
}
std::map<std::string, std::string> GpuTimer::context() const {
  return {};
}
double GpuTimer::l2_bytes() const {
  return 0;
}

}  // namespace dsa::bench

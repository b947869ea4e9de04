#include "sensors.hpp"

#include <dlfcn.h>

#include "text.hpp"

namespace dsa::bench {

namespace {

// The few declarations of NVML that are used; the toolkit's nvml.h is an optional component. All functions
// return 0 on success.
using Plain = int (*)();
using HandleByBusId = int (*)(const char* bus_id, void** device);
using ClockInfo = int (*)(void* device, int type, unsigned* mhz);
using DeviceUnsigned = int (*)(void* device, unsigned* value);
using DriverVersion = int (*)(char* version, unsigned length);
constexpr int kSmClock = 1;  // NVML_CLOCK_SM

}  // namespace

template <class Function>
Function Sensors::function(const char* name) const {
  return library_ ? reinterpret_cast<Function>(dlsym(library_, name)) : nullptr;
}

Sensors::Sensors(const std::string& pci_bus_id) : library_(dlopen("libnvidia-ml.so.1", RTLD_NOW)) {
  const auto init = function<Plain>("nvmlInit_v2");
  const auto handle = function<HandleByBusId>("nvmlDeviceGetHandleByPciBusId_v2");
  if (!init || !handle || init() != 0) return;
  if (handle(pci_bus_id.c_str(), &device_) != 0) device_ = nullptr;
}

Sensors::~Sensors() {
  if (const auto shutdown = function<Plain>("nvmlShutdown")) shutdown();
  if (library_) dlclose(library_);
}

SensorReading Sensors::read() const {
  SensorReading reading;
  if (!device_) return reading;
  unsigned value = 0;
  const auto clock = function<ClockInfo>("nvmlDeviceGetClockInfo");
  if (clock && clock(device_, kSmClock, &value) == 0) reading.sm_clock_mhz = value;
  const auto power = function<DeviceUnsigned>("nvmlDeviceGetPowerUsage");  // milliwatts
  if (power && power(device_, &value) == 0) reading.power_w = value * 1e-3;
  return reading;
}

std::map<std::string, std::string> Sensors::context() const {
  std::map<std::string, std::string> known;
  if (!device_) return known;
  unsigned value = 0;
  char version[96] = "";
  const auto driver = function<DriverVersion>("nvmlSystemGetDriverVersion");
  if (driver && driver(version, sizeof version) == 0) known["driver"] = version;
  const auto max_clock = function<ClockInfo>("nvmlDeviceGetMaxClockInfo");
  if (max_clock && max_clock(device_, kSmClock, &value) == 0)
    known["max_sm_clock_mhz"] = std::to_string(value);
  const auto limit = function<DeviceUnsigned>("nvmlDeviceGetEnforcedPowerLimit");
  if (limit && limit(device_, &value) == 0) known["power_limit_w"] = text("%.0f", value * 1e-3);
  return known;
}

}  // namespace dsa::bench

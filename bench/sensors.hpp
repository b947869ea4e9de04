/// @file sensors.hpp
/// SM clock and power of the GPU, through NVML if the driver's library is there. Absence is normal.
#pragma once

#include <map>
#include <optional>
#include <string>

namespace dsa::bench {

struct SensorReading {
  std::optional<double> sm_clock_mhz;
  std::optional<double> power_w;
};

/// The sensors of one GPU. Copies nothing and sets nothing: it only reads.
class Sensors {
 public:
  /// @param pci_bus_id as cudaDeviceGetPCIBusId gives it
  explicit Sensors(const std::string& pci_bus_id);
  ~Sensors();
  Sensors(const Sensors&) = delete;
  Sensors& operator=(const Sensors&) = delete;

  /// Now; empty members where NVML does not say.
  SensorReading read() const;
  /// "driver", "max_sm_clock_mhz", "power_limit_w", as far as known.
  std::map<std::string, std::string> context() const;

 private:
  template <class Function>
  Function function(const char* name) const;

  void* library_ = nullptr;
  void* device_ = nullptr;
};

}  // namespace dsa::bench

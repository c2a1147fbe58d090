// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
#include <unistd.h>

#include <bit>
#include <optional>
#include <string>
#include <utility>

#include "driver.h"
#include "drivers/driver_checking.h"
#include "drivers/driver_counting.h"
#include "drivers/driver_cuda.h"
#include "drivers/driver_failing.h"
#include "drivers/driver_host.h"
#include "drivers/driver_latency.h"
#include "drivers/driver_null.h"

namespace vmm {
namespace {

constexpr uint64_t kDefaultGranularity = 2u << 20;
constexpr int kMaxDevices = 64;

// Real devices have the memory, the granules and the time that they have.
std::string why_not_real(const DriverOptions& options) {
  const std::pair<const char*, uint64_t> pretended[] = {
      {"device_bytes", options.device_bytes}, {"granularity", options.granularity}, {"lag_ns", options.lag_ns}};
  for (const auto& [name, value] : pretended) {
    if (value != 0) return std::string(name) + " is for the null and the host driver, not for " + options.driver;
  }
  return "";
}

std::string why_not(const DriverOptions& options) {
  if (options.devices < 1 || options.devices > kMaxDevices) {
    return "devices must be from 1 to " + std::to_string(kMaxDevices) + ", but is " + std::to_string(options.devices);
  }
  if (options.driver == "cuda") return why_not_real(options);
  const bool host = options.driver == "host";
  const uint64_t unit = host ? static_cast<uint64_t>(sysconf(_SC_PAGESIZE)) : 512;
  const uint64_t granularity = options.granularity ? options.granularity : kDefaultGranularity;
  if (granularity < unit || !std::has_single_bit(granularity)) {
    return "granularity must be a power of two and at least " + std::to_string(unit) + " for the " + options.driver +
           " driver, but is " + std::to_string(granularity);
  }
  if (options.device_bytes != 0 && options.device_bytes < granularity) {
    return "device_bytes must be 0 or at least the granularity " + std::to_string(granularity) + ", but is " +
           std::to_string(options.device_bytes);
  }
  return "";
}

std::unique_ptr<Driver> open_bottom(const DriverOptions& options, std::string* error) {
  if (options.driver == "null") return std::make_unique<NullDriver>(options);
  if (options.driver == "host") return std::make_unique<HostDriver>(options);
  if (options.driver == "cuda") return CudaDriver::open(options, error);
  *error = "driver must be null, host or cuda, but is \"" + options.driver + "\"";
  return nullptr;
}

}  // namespace

std::unique_ptr<Driver> open_driver(const DriverOptions& given, std::string* error) {
  DriverOptions options = given;
  if (*error = why_not(options); !error->empty()) return nullptr;
  if (options.granularity == 0) options.granularity = kDefaultGranularity;
  const std::optional<FailureRules> failures = parse_failures(options.fail, error);
  if (!failures) return nullptr;
  if (!failures->latency.empty()) options.latency += (options.latency.empty() ? "" : ",") + failures->latency;
  const std::optional<Costs> costs = parse_costs(options.latency, error);
  if (!costs) return nullptr;

  std::unique_ptr<Driver> driver = open_bottom(options, error);
  if (!driver) return nullptr;
  const int devices = options.devices;
  if (options.checking) driver = std::make_unique<CheckingDriver>(std::move(driver), devices);
  if (options.counting) driver = std::make_unique<CountingDriver>(std::move(driver), devices);
  if (!failures->rules.empty()) driver = std::make_unique<FailingDriver>(std::move(driver), *failures, devices);
  if (!options.latency.empty()) driver = std::make_unique<LatencyDriver>(std::move(driver), *costs, devices);
  return driver;
}

}  // namespace vmm

// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
#include "drivers/driver_latency.h"

#include <algorithm>
#include <numeric>

#include "drivers/words.h"

namespace vmm {
namespace {

struct CostRow {
  Call call;
  uint64_t ns;
};

// Round numbers for 2 MiB pages, to compare ways of working and not to predict a machine: this project
// has measured none of them.
constexpr CostRow kCudaCosts[] = {
    // vAttention (Prabhu et al., 2024) reports some tens of microseconds each for creating, unmapping
    // and giving access to 2 MiB, and little for the map between them.
    {Call::kReserve, 20'000},
    {Call::kVaFree, 20'000},
    {Call::kCreate, 30'000},
    {Call::kMap, 5'000},
    {Call::kSetAccess, 40'000},
    {Call::kUnmap, 35'000},
    {Call::kRelease, 20'000},
    // A launch-like call of the driver is of the order of a microsecond.
    {Call::kEventCreate, 1'000},
    {Call::kEventDestroy, 1'000},
    {Call::kEventRecord, 1'000},
    {Call::kEventQuery, 500},
    {Call::kStreamQuery, 500},
    {Call::kStreamWait, 1'000},
    // The call alone; what the host waits for lies in the logical clock.
    {Call::kEventSync, 5'000},
    {Call::kDeviceSync, 10'000},
    {Call::kMemoryInfo, 10'000},
};

}  // namespace

std::optional<Costs> parse_costs(std::string_view text, std::string* error) {
  Costs costs{};
  std::vector<std::string_view> words = split(text, ',');
  if (!words.empty() && words.front() == "cuda") {
    for (const CostRow& row : kCudaCosts) costs[static_cast<size_t>(row.call)] = row.ns;
    words.erase(words.begin());
  }
  for (const std::string_view word : words) {
    const auto [name, time] = cut(word, "=");
    const std::optional<Call> call = call_named(name);
    if (!call || !time) {
      *error = "latency must be like \"create=30us,map=5us\" with calls from " + call_names() + ", but \"" +
               std::string(word) + "\" is not";
      return std::nullopt;
    }
    const std::optional<uint64_t> ns = parse_time(*time);
    if (!ns) {
      *error = "latency of " + std::string(name) + " must be a time like 30us (ns, us, ms, s), but is \"" +
               std::string(*time) + "\"";
      return std::nullopt;
    }
    costs[static_cast<size_t>(*call)] = *ns;
  }
  return costs;
}

LatencyDriver::LatencyDriver(std::unique_ptr<Driver> inner, const Costs& costs, int devices)
    : Intercepting(std::move(inner)),
      costs_(costs),
      rows_(static_cast<size_t>(devices)),
      granularity_(this->inner().capabilities(0).granularity) {}

vmm_status LatencyDriver::before(const Site& site) {
  if (static_cast<unsigned>(site.device) >= rows_.size()) return VMM_OK;
  const bool by_granule = site.call == Call::kUnmap || site.call == Call::kSetAccess;
  const uint64_t times = by_granule ? std::max<uint64_t>(site.size / granularity_, 1) : 1;
  const auto call = static_cast<size_t>(site.call);
  rows_[site.device].ns[call] += times * costs_[call];
  return VMM_OK;
}

Driver::Count LatencyDriver::count(int device, Kind kind) {
  Count count = inner().count(device, kind);
  if (static_cast<unsigned>(device) >= rows_.size()) return count;
  for (size_t i = 0; i < kCallCount; ++i) {
    if (row_of(static_cast<Call>(i)).kind == kind) count.ns += rows_[device].ns[i];
  }
  return count;
}

uint64_t LatencyDriver::modelled_ns(int device) const {
  if (static_cast<unsigned>(device) >= rows_.size()) return 0;
  const auto& ns = rows_[device].ns;
  return std::accumulate(ns.begin(), ns.end(), uint64_t{0});
}

}  // namespace vmm

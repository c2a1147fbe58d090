// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
//
// Adds up what the calls of a run would have cost on a device, by a table. Nobody waits for it: the sum
// is in the nanoseconds of `count` beside the measured ones, and on its own in `modelled_ns`.
//
// The option is "create=30us,map=5us": calls by name (calls.h), times in ns, us, ms or s, 0 for all that
// is not named. A first word "cuda" takes the table of kCudaCosts instead of zeros.
// unmap and set_access cost their time for each granule of their range, the others for each call.

#pragma once

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "drivers/intercepting.h"

namespace vmm {

using Costs = std::array<uint64_t, kCallCount>;  // in ns

// Empty, and a sentence, for a text that breaks a rule.
std::optional<Costs> parse_costs(std::string_view text, std::string* error);

class LatencyDriver final : public Intercepting {
 public:
  LatencyDriver(std::unique_ptr<Driver> inner, const Costs& costs, int devices);

  Count count(int device, Kind kind) override;
  uint64_t modelled_ns(int device) const;

 private:
  struct alignas(64) Row {  // devices are used by different threads
    std::array<uint64_t, kCallCount> ns{};
  };

  vmm_status before(const Site& site) override;
  void after(const Site&, vmm_status) override {}

  const Costs costs_;
  std::vector<Row> rows_;
  uint64_t granularity_;
};

}  // namespace vmm

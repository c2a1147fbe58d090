// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
//
// Makes chosen calls fail without reaching the driver below. The language is in failure_rules.h.

#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "drivers/failure_rules.h"
#include "drivers/intercepting.h"

namespace vmm {

class FailingDriver final : public Intercepting {
 public:
  FailingDriver(std::unique_ptr<Driver> inner, const FailureRules& rules, int devices);

  bool capturing(int device, Stream stream) override { return !lost_ && inner().capturing(device, stream); }

 private:
  struct Armed {
    FailureRule rule;
    uint64_t calls = 0;  // that the rule speaks of, so far
    uint64_t random = 0;
  };
  struct Held {  // on one device, the events in numbers and all else in bytes
    uint64_t reserved = 0, created = 0, mapped = 0, events = 0;
  };

  vmm_status before(const Site& site) override;
  void after(const Site& site, vmm_status status) override;
  bool fires(Armed& armed, const Site& site);
  const Held& held(int device) const;

  std::mutex mutex_;  // calls are counted over all devices
  std::vector<Armed> armed_;
  std::vector<Held> held_;
  std::atomic<bool> lost_{false};
};

}  // namespace vmm

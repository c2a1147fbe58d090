// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
//
// The language of failures:
//
//   rules   rule;rule;...
//   rule    call[@where][:error][*times]   or   latency:costs   (driver_latency.h)
//   call    a name of calls.h, or any
//   where   7                  the seventh such call, counted from 1 over all devices
//           3..5               the third to the fifth
//           last               the call that gives back the last of its kind on its device
//                              (unmap, release, va_free, event_destroy)
//           p=0.01,seed=3      each with this probability; the seed is 1 if it is not given
//           over=64MiB         create: when the pages of the device would exceed these bytes
//           at=0x1000..0x2000  calls whose address lies there, the end excluded
//   error   oom, invalid, notready, perm, lost (everything fails from then on)
//   times   at most so often
//
// Without an error, create and reserve fail with oom, the queries with notready and all others with
// invalid. Without a place every call fails. `call@7` with times is the seventh and those after it.

#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "drivers/calls.h"

namespace vmm {

struct FailureRule {
  enum Where { kAlways, kRange, kLast, kChance, kOver, kAt };

  std::optional<Call> call;  // none: any
  Where where = kAlways;
  uint64_t first = 0, last = 0;  // kRange: both included; kAt: the end excluded
  bool open = false;             // kRange: `7`, which with times is the seventh and those after it
  double probability = 0;
  uint64_t seed = 1;
  uint64_t bytes = 0;
  std::optional<vmm_status> error;  // none: the usual one of the call
  uint64_t times = UINT64_MAX;
};

struct FailureRules {
  std::vector<FailureRule> rules;
  std::string latency;  // the costs of all latency rules, joined by commas
};

// Empty, and a sentence, for a text that breaks a rule.
std::optional<FailureRules> parse_failures(std::string_view text, std::string* error);

}  // namespace vmm

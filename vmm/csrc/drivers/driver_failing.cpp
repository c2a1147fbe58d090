// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
#include "drivers/driver_failing.h"

#include <string>

#include "drivers/reason.h"

namespace vmm {
namespace {

// SplitMix64 (Steele, Lea and Flood, 2014): the same numbers on every machine.
double next_random(uint64_t* state) {
  uint64_t z = *state += 0x9e3779b97f4a7c15;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return static_cast<double>((z ^ (z >> 31)) >> 11) * 0x1p-53;
}

vmm_status usual_error(Call call) {
  switch (call) {
    case Call::kReserve:
    case Call::kCreate: return VMM_OUT_OF_MEMORY;
    case Call::kStreamQuery:
    case Call::kEventQuery: return VMM_NOT_READY;
    default: return VMM_INVALID;
  }
}

}  // namespace

FailingDriver::FailingDriver(std::unique_ptr<Driver> inner, const FailureRules& rules, int devices)
    : Intercepting(std::move(inner)), held_(static_cast<size_t>(devices)) {
  for (const FailureRule& rule : rules.rules) armed_.push_back({rule, 0, rule.seed});
}

const FailingDriver::Held& FailingDriver::held(int device) const {
  static const Held none;
  return static_cast<unsigned>(device) < held_.size() ? held_[device] : none;
}

bool FailingDriver::fires(Armed& armed, const Site& site) {
  const FailureRule& rule = armed.rule;
  if (rule.call && *rule.call != site.call) return false;
  ++armed.calls;
  const Held& now = held(site.device);
  switch (rule.where) {
    case FailureRule::kAlways: return true;
    case FailureRule::kRange: return armed.calls >= rule.first && armed.calls <= rule.last;
    case FailureRule::kChance: return next_random(&armed.random) < rule.probability;
    case FailureRule::kOver: return now.created + site.size > rule.bytes;
    case FailureRule::kAt: return row_of(site.call).address && site.at >= rule.first && site.at < rule.last;
    case FailureRule::kLast: break;
  }
  switch (site.call) {
    case Call::kUnmap: return now.mapped == site.size;
    case Call::kRelease: return now.created == site.size;
    case Call::kVaFree: return now.reserved == site.size;
    default: return now.events == 1;
  }
}

vmm_status FailingDriver::before(const Site& site) {
  const std::lock_guard lock(mutex_);
  if (lost_) return refuse(VMM_DEVICE_LOST, "the device was lost (injected)");
  // Every rule sees every call, so that what one rule does never moves the count of another.
  vmm_status status = VMM_OK;
  for (Armed& armed : armed_) {
    if (!fires(armed, site) || armed.rule.times == 0 || status != VMM_OK) continue;
    if (armed.rule.times != UINT64_MAX) --armed.rule.times;
    status = armed.rule.error.value_or(usual_error(site.call));
  }
  if (status == VMM_OK) return VMM_OK;
  lost_ = lost_ || status == VMM_DEVICE_LOST;
  return refuse(status, "the call " + std::string(row_of(site.call).name) + " failed (injected)");
}

void FailingDriver::after(const Site& site, vmm_status status) {
  if (status != VMM_OK || static_cast<unsigned>(site.device) >= held_.size()) return;
  const std::lock_guard lock(mutex_);
  Held& now = held_[site.device];
  switch (site.call) {
    case Call::kReserve: now.reserved += site.size; break;
    case Call::kVaFree: now.reserved -= site.size; break;
    case Call::kCreate: now.created += site.size; break;
    case Call::kRelease: now.created -= site.size; break;
    case Call::kMap: now.mapped += site.size; break;
    case Call::kUnmap: now.mapped -= site.size; break;
    case Call::kEventCreate: ++now.events; break;
    case Call::kEventDestroy: --now.events; break;
    default: break;
  }
}

}  // namespace vmm

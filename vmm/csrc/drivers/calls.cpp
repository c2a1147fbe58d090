// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
#include "drivers/calls.h"

namespace vmm {
namespace {

constexpr CallRow kRows[kCallCount] = {
    {"reserve", Driver::kReserve, false},
    {"va_free", Driver::kReserve, true},
    {"create", Driver::kCreate, false},
    {"release", Driver::kRelease, false},
    {"map", Driver::kMap, true},
    {"unmap", Driver::kUnmap, true},
    {"set_access", Driver::kAccess, true},
    {"memory_info", -1, false},
    {"stream_query", Driver::kEvent, false},
    {"stream_wait", Driver::kWait, false},
    {"event_create", Driver::kEvent, false},
    {"event_destroy", Driver::kEvent, false},
    {"event_record", Driver::kEvent, false},
    {"event_query", Driver::kEvent, false},
    {"event_sync", Driver::kSync, false},
    {"device_sync", Driver::kSync, false},
    {"copy_out", -1, true},
    {"copy_in", -1, true},
    {"export", -1, false},
};

}  // namespace

const CallRow& row_of(Call call) { return kRows[static_cast<size_t>(call)]; }

std::optional<Call> call_named(std::string_view name) {
  for (size_t i = 0; i < kCallCount; ++i) {
    if (kRows[i].name == name) return static_cast<Call>(i);
  }
  return std::nullopt;
}

std::string call_names() {
  std::string names;
  for (const CallRow& row : kRows) names += (names.empty() ? "" : ", ") + std::string(row.name);
  return names;
}

}  // namespace vmm

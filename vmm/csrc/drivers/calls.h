// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
//
// The calls of a driver by name, for the decorators whose options speak of them.

#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "driver.h"

namespace vmm {

enum class Call : uint8_t {
  kReserve,
  kVaFree,
  kCreate,
  kRelease,
  kMap,
  kUnmap,
  kSetAccess,
  kMemoryInfo,
  kStreamQuery,
  kStreamWait,
  kEventCreate,
  kEventDestroy,
  kEventRecord,
  kEventQuery,
  kEventSync,
  kDeviceSync,
  kCopyOut,
  kCopyIn,
  kExport,
  kCalls,
};
constexpr size_t kCallCount = static_cast<size_t>(Call::kCalls);

struct CallRow {
  std::string_view name;
  int kind;      // Driver::Kind, -1: counted nowhere
  bool address;  // it names an address
};
const CallRow& row_of(Call call);

std::optional<Call> call_named(std::string_view name);
std::string call_names();  // "reserve, va_free, ..."

}  // namespace vmm

// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
#include "drivers/reason.h"

#include <cinttypes>
#include <cstdio>

namespace vmm {
namespace {

// Plain memory has no destructor: memory is freed until the very end of a process, when the objects of
// its threads are gone.
thread_local char reason[1024];

}  // namespace

const char* last_reason() { return reason; }

vmm_status refuse(vmm_status status, const std::string& sentence) {
  std::snprintf(reason, sizeof reason, "%s", sentence.c_str());
  return status;
}

std::string hex(uint64_t value) {
  char text[24];
  std::snprintf(text, sizeof text, "0x%" PRIx64, value);
  return text;
}

}  // namespace vmm

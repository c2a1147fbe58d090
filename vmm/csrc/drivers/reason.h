// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
//
// Why a driver refused. A status has no room for it, and most refusals are never shown to anybody, so
// the sentence lies in the thread until somebody asks.

#pragma once

#include <string>
#include <utility>

#include "vmm.h"

namespace vmm {

// The sentence of the last refusal of any driver in this thread; "" if there was none.
inline std::string& last_reason() {
  thread_local std::string reason;
  return reason;
}

inline vmm_status refuse(vmm_status status, std::string sentence) {
  last_reason() = std::move(sentence);
  return status;
}

// 0x7f00..., as every sentence about addresses writes them.
std::string hex(uint64_t value);

}  // namespace vmm

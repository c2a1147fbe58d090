// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
//
// Why a driver refused. A status has no room for it, and most refusals are never shown to anybody, so
// the sentence lies in the thread until somebody asks.

#pragma once

#include <string>

#include "vmm.h"

namespace vmm {

// The sentence of the last refusal of any driver in this thread; "" if there was none. Valid until the
// next one. A very long sentence is cut.
const char* last_reason();

vmm_status refuse(vmm_status status, const std::string& sentence);

// 0x7f00..., as every sentence about addresses writes them.
std::string hex(uint64_t value);

}  // namespace vmm

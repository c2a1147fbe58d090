// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
//
// The sentence about the last failure, one per thread.

#pragma once

#include <string>

#include "vmm.h"

namespace vmm {

// Keeps the sentence and hands the status through: `return fail(VMM_INVALID, "size: ...")`.
vmm_status fail(vmm_status status, const std::string& sentence);

const char* last_error();

// "1.5 GiB (1610612736 B)": for people, and exact.
std::string bytes_text(uint64_t bytes);

}  // namespace vmm

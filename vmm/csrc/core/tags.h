// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
//
// Names as small numbers, for the whole process.

#pragma once

#include <cstdint>

namespace vmm {

uint32_t intern_tag(const char* text);
const char* tag_text(uint32_t tag);  // null if unknown

// What requests of this thread carry unless they say otherwise.
uint32_t thread_tag();

// Held across fork(), so that the child finds the table whole.
void lock_tags();
void unlock_tags();
uint32_t set_thread_tag(uint32_t tag);

}  // namespace vmm

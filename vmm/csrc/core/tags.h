// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
//
// Names as small numbers, for the whole process.

#pragma once

#include <atomic>
#include <cstdint>

namespace vmm {

uint32_t intern_tag(const char* text);
const char* tag_text(uint32_t tag);  // null if unknown

// Whether any thread ever had a tag: finding the variable of a thread takes a call.
inline std::atomic<bool> tags_in_use{false};

// What requests of this thread carry unless they say otherwise.
uint32_t tag_of_this_thread();
uint32_t set_thread_tag(uint32_t tag);
inline uint32_t thread_tag() { return tags_in_use.load(std::memory_order_relaxed) ? tag_of_this_thread() : 0; }

// Held across fork(), so that the child finds the table whole.
void lock_tags();
void unlock_tags();

}  // namespace vmm

// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
//
// What a user may set: "key:value,key:value". An unknown key or a value out of range is an error.

#pragma once

#include <cstdint>
#include <string>

#include "driver.h"

namespace vmm {

enum class Policy { kCreateFirst, kStealFirst };
enum class CrossStream { kNever, kWait, kWaitAboveSoft };

struct Config {
  DriverOptions driver;

  uint64_t page = 2u << 20;         // physical unit; a multiple of the granularity of the driver
  uint64_t small_max = 256u << 10;  // requests up to this go to the small arena
  uint64_t grow = 20u << 20;        // least new physical bytes per growth, while below the soft limit
  double va_factor = 4;             // address range of a large arena, in device memories
  double va_factor_small = 1;
  Policy policy = Policy::kCreateFirst;
  double soft_slack = 0.005;  // the soft limit lies this far above the highest live bytes of the last steps
  uint64_t soft_floor = 0;    // and never below this
  uint64_t soft_steps = 3;
  uint64_t limit = 0;  // hard limit on physical bytes, 0: what the device has
  double fraction = 1;
  uint64_t reserve_outside = 0;  // bytes that are always left to others
  CrossStream cross_stream = CrossStream::kWaitAboveSoft;
  uint64_t split_min = 512;
  uint64_t whole_block_waste = 0;  // take a free block whole if no more than this is wasted
  uint64_t align_large = 0;        // requests of at least this start at a page (0: never)
  uint64_t oom_rounds = 3;
  int check = 0;  // 1: cheap invariants after slow paths, 2: all of them after every call
};

// Returns false and a sentence on error.
bool parse_config(const std::string& text, Config* out, std::string* error);

}  // namespace vmm

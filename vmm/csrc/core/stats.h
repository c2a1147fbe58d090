// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
//
// What is counted. Names follow torch.cuda.memory_stats where torch counts the same thing.

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace vmm {

struct Gauge {
  uint64_t current = 0, peak = 0, freed = 0;

  void add(uint64_t amount) {
    current += amount;
    if (current > peak) peak = current;
  }
  void sub(uint64_t amount) {
    current -= amount;
    freed += amount;
  }
  uint64_t allocated() const { return current + freed; }
  void reset_peak() { peak = current; }
};

// Small and large requests. Of their sum only the peak needs a number of its own: peaks do not add up.
struct Gauges {
  Gauge small, large;
  uint64_t peak = 0;

  uint64_t current() const { return small.current + large.current; }
  Gauge all() const { return {current(), peak, small.freed + large.freed}; }

  void add(bool is_small, uint64_t amount) {
    (is_small ? small : large).add(amount);
    if (current() > peak) peak = current();
  }
  void sub(bool is_small, uint64_t amount) { (is_small ? small : large).sub(amount); }
  void reset_peak() {
    small.reset_peak();
    large.reset_peak();
    peak = current();
  }
};

struct Stats {
  Gauges allocation, allocated_bytes, requested_bytes;
  Gauge pages;    // created, in whatever state
  Gauges mapped;  // pages at home in an arena
  uint64_t retries = 0, ooms = 0;
  uint64_t moves = 0, aliases = 0, cross_stream = 0;  // stolen pages
  uint64_t step_start_steals = 0, last_step_steals = 0;
  uint64_t quarantines = 0;

  uint64_t steals() const { return moves + aliases; }
  void reset_peak() {
    for (Gauges* gauges : {&allocation, &allocated_bytes, &requested_bytes, &mapped}) gauges->reset_peak();
    pages.reset_peak();
  }
};

// The table of names that vmm_stats fills in the same order.
const std::vector<std::string>& stat_names();

}  // namespace vmm

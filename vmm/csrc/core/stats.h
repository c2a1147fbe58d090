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

// Small and large requests; the sum is kept as well, because peaks do not add up.
struct Gauges {
  Gauge all, small, large;

  void add(bool is_small, uint64_t amount) {
    all.add(amount);
    (is_small ? small : large).add(amount);
  }
  void sub(bool is_small, uint64_t amount) {
    all.sub(amount);
    (is_small ? small : large).sub(amount);
  }
  void reset_peak() {
    all.reset_peak();
    small.reset_peak();
    large.reset_peak();
  }
};

struct Stats {
  Gauges allocation, allocated_bytes, requested_bytes;
  Gauges segment, reserved_bytes;  // a segment is a physical page
  uint64_t retries = 0, ooms = 0;
  uint64_t moves = 0, aliases = 0, cross_stream = 0;  // stolen pages
  uint64_t step_start_steals = 0, last_step_steals = 0;
  uint64_t quarantines = 0;

  uint64_t steals() const { return moves + aliases; }
  void reset_peak() {
    for (Gauges* gauges : {&allocation, &allocated_bytes, &requested_bytes, &segment, &reserved_bytes}) {
      gauges->reset_peak();
    }
  }
};

// The table of names that vmm_stats fills in the same order.
const std::vector<std::string>& stat_names();

}  // namespace vmm

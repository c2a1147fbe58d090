// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
//
// A clock that costs a few nanoseconds to read: the counter of the processor where there is one. Its
// unit is found out by comparing it with the monotonic clock over the life of the object.

#pragma once

#include <chrono>
#include <cstdint>

#if defined(__x86_64__)
#include <x86intrin.h>
#endif

namespace vmm {

inline uint64_t monotonic_ns() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(now).count());
}

inline uint64_t read_ticks() {
#if defined(__x86_64__)
  return __rdtsc();
#elif defined(__aarch64__)
  uint64_t ticks;
  asm volatile("mrs %0, cntvct_el0" : "=r"(ticks));
  return ticks;
#else
  return monotonic_ns();
#endif
}

class TickScale {
 public:
  uint64_t to_ns(uint64_t ticks) const {
    const uint64_t ticks_lived = read_ticks() - first_ticks_, ns_lived = monotonic_ns() - first_ns_;
    if (ticks_lived == 0) return 0;
    return static_cast<uint64_t>(static_cast<double>(ticks) * static_cast<double>(ns_lived) /
                                 static_cast<double>(ticks_lived));
  }

 private:
  uint64_t first_ticks_ = read_ticks(), first_ns_ = monotonic_ns();
};

}  // namespace vmm

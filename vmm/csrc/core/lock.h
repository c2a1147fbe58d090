// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
//
// The lock of a device. What it protects takes tens of nanoseconds, so a waiter spins a little before it
// sleeps; a free lock costs one atomic exchange to take and one to give back.

#pragma once

#include <atomic>
#include <cstdint>

namespace vmm {

class Lock {
 public:
  void lock() {
    uint32_t expected = kFree;
    if (!state_.compare_exchange_strong(expected, kHeld, std::memory_order_acquire, std::memory_order_relaxed)) wait();
  }
  void unlock() {
    if (state_.exchange(kFree, std::memory_order_release) == kWaited) state_.notify_one();
  }

 private:
  enum : uint32_t { kFree, kHeld, kWaited };  // kWaited: somebody sleeps until it is free

  void wait() {
    for (int spins = 0; spins < 200; ++spins) {
      uint32_t expected = kFree;
      if (state_.load(std::memory_order_relaxed) == kFree &&
          state_.compare_exchange_weak(expected, kHeld, std::memory_order_acquire, std::memory_order_relaxed)) {
        return;
      }
      pause();
    }
    while (state_.exchange(kWaited, std::memory_order_acquire) != kFree) {
      state_.wait(kWaited, std::memory_order_relaxed);
    }
  }

  static void pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
  }

  std::atomic<uint32_t> state_{kFree};
};

}  // namespace vmm

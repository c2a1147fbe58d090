// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
//
// The ring of the last events of an allocator. Off, it costs one relaxed load; on, a spin lock and 48 bytes.

#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "vmm.h"

namespace vmm {

class Recorder {
 public:
  bool on() const { return on_.load(std::memory_order_relaxed); }
  bool with_stacks() const { return with_stacks_.load(std::memory_order_relaxed); }
  uint64_t min_size() const { return min_size_.load(std::memory_order_relaxed); }

  vmm_status start(uint64_t capacity, uint64_t min_size, bool with_stacks);
  void stop() { on_.store(false, std::memory_order_relaxed); }

  // Streams of all devices have one numbering in recordings.
  uint16_t stream_number(uint64_t handle);
  size_t streams(uint64_t* out, size_t capacity);

  void push(const vmm_event& event);
  size_t read(vmm_event* out, size_t capacity, uint64_t* lost);

 private:
  std::atomic<bool> on_{false}, with_stacks_{false};
  std::atomic_flag busy_ = ATOMIC_FLAG_INIT;
  std::atomic<uint64_t> min_size_{0};
  std::vector<vmm_event> ring_;
  std::vector<uint64_t> streams_{0};
  uint64_t written_ = 0, read_ = 0, lost_ = 0;
};

// A small number for the calling thread.
uint16_t thread_number();

}  // namespace vmm

// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
//
// See recorder.h.

#include "core/recorder.h"

#include <algorithm>

#include "core/sentences.h"

namespace vmm {
namespace {

class Spin {
 public:
  explicit Spin(std::atomic_flag& flag) : flag_(flag) {
    while (flag_.test_and_set(std::memory_order_acquire)) {
    }
  }
  ~Spin() { flag_.clear(std::memory_order_release); }

 private:
  std::atomic_flag& flag_;
};

}  // namespace

vmm_status Recorder::start(uint64_t capacity, uint64_t min_size, bool with_stacks) {
  if (capacity == 0 || capacity > (uint64_t{1} << 32)) {
    return fail(VMM_INVALID, "capacity: a recording holds 1 to 2^32 events, but is " + std::to_string(capacity));
  }
  Spin spin(busy_);
  try {
    ring_.assign(capacity, {});
  } catch (const std::bad_alloc&) {
    ring_.clear();
    return fail(VMM_OUT_OF_MEMORY, "capacity: no memory for a ring of " + std::to_string(capacity) + " events");
  }
  written_ = read_ = lost_ = 0;
  min_size_.store(min_size, std::memory_order_relaxed);
  with_stacks_.store(with_stacks, std::memory_order_relaxed);
  on_.store(true, std::memory_order_release);
  return VMM_OK;
}

uint16_t Recorder::stream_number(uint64_t handle) {
  Spin spin(busy_);
  auto found = std::find(streams_.begin(), streams_.end(), handle);
  size_t number = static_cast<size_t>(found - streams_.begin());
  if (found == streams_.end() && number < UINT16_MAX) {
    try {
      streams_.push_back(handle);
    } catch (const std::bad_alloc&) {
      return UINT16_MAX;  // the tables of the caller matter more than a name in a recording
    }
  }
  return static_cast<uint16_t>(number);
}

size_t Recorder::streams(uint64_t* out, size_t capacity) {
  Spin spin(busy_);
  std::copy_n(streams_.begin(), std::min(capacity, streams_.size()), out);
  return streams_.size();
}

void Recorder::push(const vmm_event& event) {
  Spin spin(busy_);
  if (ring_.empty()) return;
  ring_[written_ % ring_.size()] = event;
  ++written_;
  if (written_ - read_ > ring_.size()) ++read_, ++lost_;
}

size_t Recorder::read(vmm_event* out, size_t capacity, uint64_t* lost) {
  Spin spin(busy_);
  size_t count = static_cast<size_t>(std::min<uint64_t>(written_ - read_, capacity));
  for (size_t i = 0; i < count; ++i) out[i] = ring_[(read_ + i) % ring_.size()];
  read_ += count;
  if (lost != nullptr) *lost = lost_;
  return count;
}

uint16_t thread_number() {
  static std::atomic<uint16_t> next{0};
  thread_local uint16_t number = next.fetch_add(1, std::memory_order_relaxed);
  return number;
}

}  // namespace vmm

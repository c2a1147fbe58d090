// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
//
// What the null and the host driver have in common: devices whose streams are virtual.

#pragma once

#include <atomic>
#include <vector>

#include "drivers/virtual_streams.h"

namespace vmm {

class VirtualDriver : public Driver {
 public:
  VirtualDriver(int devices, uint64_t granularity, uint64_t lag_ns);

  vmm_status stream_query(int device, Stream stream) final;
  vmm_status stream_wait(int device, Stream stream, Event event) final;
  bool capturing(int device, Stream stream) final;

  vmm_status event_create(int device, Event* out) final;
  vmm_status event_destroy(int device, Event event) final;
  vmm_status event_record(int device, Event event, Stream stream) final;
  vmm_status event_query(int device, Event event) final;
  vmm_status event_sync(int device, Event event) final;
  vmm_status device_sync(int device) final;

  vmm_status clock_set(int device, uint64_t t_ns) final;
  vmm_status clock_kernel(int device, Stream stream, uint64_t duration_ns) final;
  uint64_t clock_now(int device) final;

  void abandon() final { dead_.store(true, std::memory_order_relaxed); }

  // What a capture of a CUDA graph would do to the stream. For tests.
  vmm_status set_capturing(int device, Stream stream, bool on);

 protected:
  // Called after the clock of a device moved.
  virtual void advanced(int device) { (void)device; }

  bool dead() const { return dead_.load(std::memory_order_relaxed); }
  vmm_status admit(int device) const {
    if (!dead() && static_cast<unsigned>(device) < streams_.size()) [[likely]]
      return VMM_OK;
    return not_admitted(device);
  }
  // As admit, and all of `values` are multiples of the granularity; `size` is not 0.
  vmm_status admit(int device, uint64_t size, uint64_t at = 0) const {
    if (((size | at) & (granularity_ - 1)) == 0 && size != 0) [[likely]]
      return admit(device);
    return not_granular(device, size, at);
  }

  const uint64_t granularity_;           // a power of two
  std::vector<VirtualStreams> streams_;  // by device

 private:
  vmm_status not_admitted(int device) const;
  vmm_status not_granular(int device, uint64_t size, uint64_t at) const;

  std::atomic<bool> dead_{false};
};

}  // namespace vmm

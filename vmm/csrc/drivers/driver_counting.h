// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
//
// Counts the calls that reach a driver and the time which they take.

#pragma once

#include <array>
#include <memory>
#include <vector>

#include "drivers/forwarding.h"
#include "drivers/ticks.h"

namespace vmm {

class CountingDriver final : public Forwarding {
 public:
  CountingDriver(std::unique_ptr<Driver> inner, int devices)
      : Forwarding(std::move(inner)), rows_(static_cast<size_t>(devices)) {}

  vmm_status va_reserve(int device, uint64_t size, Address* out) override;
  vmm_status va_free(int device, Address base, uint64_t size) override;
  vmm_status page_create(int device, uint64_t size, Handle* out) override;
  vmm_status page_release(int device, uint64_t size, Handle page) override;
  vmm_status map(int device, Address at, uint64_t size, Handle page) override;
  vmm_status unmap(int device, Address at, uint64_t size) override;
  vmm_status set_access(int device, Address at, uint64_t size) override;
  vmm_status stream_query(int device, Stream stream) override;
  vmm_status stream_wait(int device, Stream stream, Event event) override;
  vmm_status event_create(int device, Event* out) override;
  vmm_status event_destroy(int device, Event event) override;
  vmm_status event_record(int device, Event event, Stream stream) override;
  vmm_status event_query(int device, Event event) override;
  vmm_status event_sync(int device, Event event) override;
  vmm_status device_sync(int device) override;

  Count count(int device, Kind kind) override;

 private:
  struct alignas(64) Row {            // devices are used by different threads
    std::array<Count, kKinds> kinds;  // in ticks
  };
  template <class Call>
  vmm_status timed(int device, Kind kind, const Call& call);

  std::vector<Row> rows_;
  TickScale scale_;
};

}  // namespace vmm

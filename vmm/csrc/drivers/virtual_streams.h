// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
//
// The streams and events of a device that does not exist, on a logical clock which only moves when it is
// told to or when somebody synchronizes. A stream is busy until a time; work queued on it starts then.

#pragma once

#include <cstdint>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "driver.h"

namespace vmm {

class VirtualStreams {
 public:
  // With a lag, a stream is taken to have work queued all the time: an event is done `lag_ns` after it
  // was recorded at the earliest, and a stream is never found idle except just after a synchronization.
  explicit VirtualStreams(uint64_t lag_ns) : lag_ns_(lag_ns) {}

  uint64_t now() const { return now_; }
  uint64_t lag() const { return lag_ns_; }
  void set(uint64_t t_ns);  // time never goes back

  // Queues work of `duration_ns`. Returns the time at which all of it is done, lag included.
  uint64_t kernel(Stream stream, uint64_t duration_ns);
  uint64_t end_of(Stream stream, uint64_t duration_ns) const;  // that time, if it were queued now
  vmm_status query(Stream stream);
  vmm_status wait(Stream stream, Event event);
  vmm_status sync();

  bool capturing(Stream stream) const { return capturing_.count(stream) != 0; }
  void set_capturing(Stream stream, bool on);

  Event event_create();
  vmm_status event_destroy(Event event);
  vmm_status event_record(Event event, Stream stream);
  vmm_status event_query(Event event) const;
  vmm_status event_sync(Event event);

 private:
  struct Queue {
    uint64_t busy_until = 0;
    uint64_t synced_tick = 0;  // nothing was queued since the synchronization in this tick
  };
  static constexpr uint64_t kDestroyed = UINT64_MAX;

  uint64_t* time_of(Event event);
  const uint64_t* time_of(Event event) const { return const_cast<VirtualStreams*>(this)->time_of(event); }

  uint64_t lag_ns_;
  uint64_t now_ = 0;
  uint64_t latest_ = 0;       // when all that was ever queued is done
  uint64_t tick_ = 1;         // of the clock being set
  uint64_t synced_tick_ = 0;  // of the last synchronization of the device
  std::unordered_map<Stream, Queue> queues_;
  std::unordered_set<Stream> capturing_;
  std::vector<uint64_t> events_;  // done at; event e lies at e - 1
  std::vector<Event> spare_;
};

}  // namespace vmm

// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
#include "drivers/virtual_streams.h"

#include <algorithm>
#include <string>

#include "drivers/reason.h"

namespace vmm {
namespace {

vmm_status unknown(Event event) { return refuse(VMM_INVALID, "there is no event " + std::to_string(event)); }

}  // namespace

void VirtualStreams::set(uint64_t t_ns) {
  now_ = std::max(now_, t_ns);
  ++tick_;
}

uint64_t VirtualStreams::end_of(Stream stream, uint64_t duration_ns) const {
  const auto found = queues_.find(stream);
  const uint64_t busy_until = found == queues_.end() ? 0 : found->second.busy_until;
  return std::max(busy_until, now_) + duration_ns + lag_ns_;
}

uint64_t VirtualStreams::kernel(Stream stream, uint64_t duration_ns) {
  const uint64_t done = end_of(stream, duration_ns);
  queues_[stream] = {done - lag_ns_, 0};
  latest_ = std::max(latest_, done);
  return done;
}

vmm_status VirtualStreams::query(Stream stream) {
  if (lag_ns_ == 0) {
    const auto found = queues_.find(stream);
    return found == queues_.end() || found->second.busy_until <= now_ ? VMM_OK : VMM_NOT_READY;
  }
  const auto found = queues_.find(stream);
  const uint64_t synced = found == queues_.end() ? synced_tick_ : found->second.synced_tick;
  return synced == tick_ ? VMM_OK : VMM_NOT_READY;
}

vmm_status VirtualStreams::wait(Stream stream, Event event) {
  const uint64_t* done = time_of(event);
  if (!done) return unknown(event);
  Queue& queue = queues_[stream];
  queue.busy_until = std::max(queue.busy_until, *done);
  queue.synced_tick = 0;
  latest_ = std::max(latest_, queue.busy_until + lag_ns_);
  return VMM_OK;
}

vmm_status VirtualStreams::sync() {
  now_ = std::max(now_, latest_);
  for (auto& [stream, queue] : queues_) queue.synced_tick = tick_;
  synced_tick_ = tick_;
  return VMM_OK;
}

void VirtualStreams::set_capturing(Stream stream, bool on) {
  if (on) {
    capturing_.insert(stream);
  } else {
    capturing_.erase(stream);
  }
}

uint64_t* VirtualStreams::time_of(Event event) {
  if (event == 0 || event > events_.size() || events_[event - 1] == kDestroyed) return nullptr;
  return &events_[event - 1];
}

Event VirtualStreams::event_create() {
  if (spare_.empty()) {
    events_.push_back(0);
    return events_.size();
  }
  const Event event = spare_.back();
  spare_.pop_back();
  events_[event - 1] = 0;
  return event;
}

vmm_status VirtualStreams::event_destroy(Event event) {
  uint64_t* done = time_of(event);
  if (!done) return unknown(event);
  *done = kDestroyed;
  spare_.push_back(event);
  return VMM_OK;
}

vmm_status VirtualStreams::event_record(Event event, Stream stream) {
  uint64_t* done = time_of(event);
  if (!done) return unknown(event);
  *done = end_of(stream, 0);
  latest_ = std::max(latest_, *done);
  return VMM_OK;
}

vmm_status VirtualStreams::event_query(Event event) const {
  const uint64_t* done = time_of(event);
  if (!done) return unknown(event);
  return *done <= now_ ? VMM_OK : VMM_NOT_READY;
}

vmm_status VirtualStreams::event_sync(Event event) {
  const uint64_t* done = time_of(event);
  if (!done) return unknown(event);
  now_ = std::max(now_, *done);
  return VMM_OK;
}

}  // namespace vmm

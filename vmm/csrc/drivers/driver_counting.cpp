// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
#include "drivers/driver_counting.h"

namespace vmm {

template <class Call>
vmm_status CountingDriver::timed(int device, Kind kind, const Call& call) {
  if (static_cast<unsigned>(device) >= rows_.size()) return call();
  const uint64_t begin = read_ticks();
  const vmm_status status = call();
  const uint64_t end = read_ticks();
  Count& count = rows_[device].kinds[kind];
  ++count.calls;
  if (end > begin) count.ns += end - begin;  // counters of different cores may differ a little
  return status;
}

vmm_status CountingDriver::va_reserve(int device, uint64_t size, Address* out) {
  return timed(device, kReserve, [&] { return inner().va_reserve(device, size, out); });
}

vmm_status CountingDriver::va_free(int device, Address base, uint64_t size) {
  return timed(device, kReserve, [&] { return inner().va_free(device, base, size); });
}

vmm_status CountingDriver::page_create(int device, uint64_t size, Handle* out) {
  return timed(device, kCreate, [&] { return inner().page_create(device, size, out); });
}

vmm_status CountingDriver::page_release(int device, uint64_t size, Handle page) {
  return timed(device, kRelease, [&] { return inner().page_release(device, size, page); });
}

vmm_status CountingDriver::map(int device, Address at, uint64_t size, Handle page) {
  return timed(device, kMap, [&] { return inner().map(device, at, size, page); });
}

vmm_status CountingDriver::unmap(int device, Address at, uint64_t size) {
  return timed(device, kUnmap, [&] { return inner().unmap(device, at, size); });
}

vmm_status CountingDriver::set_access(int device, Address at, uint64_t size) {
  return timed(device, kAccess, [&] { return inner().set_access(device, at, size); });
}

vmm_status CountingDriver::stream_query(int device, Stream stream) {
  return timed(device, kEvent, [&] { return inner().stream_query(device, stream); });
}

vmm_status CountingDriver::stream_wait(int device, Stream stream, Event event) {
  return timed(device, kWait, [&] { return inner().stream_wait(device, stream, event); });
}

vmm_status CountingDriver::event_create(int device, Event* out) {
  return timed(device, kEvent, [&] { return inner().event_create(device, out); });
}

vmm_status CountingDriver::event_destroy(int device, Event event) {
  return timed(device, kEvent, [&] { return inner().event_destroy(device, event); });
}

vmm_status CountingDriver::event_record(int device, Event event, Stream stream) {
  return timed(device, kEvent, [&] { return inner().event_record(device, event, stream); });
}

vmm_status CountingDriver::event_query(int device, Event event) {
  return timed(device, kEvent, [&] { return inner().event_query(device, event); });
}

vmm_status CountingDriver::event_sync(int device, Event event) {
  return timed(device, kSync, [&] { return inner().event_sync(device, event); });
}

vmm_status CountingDriver::device_sync(int device) {
  return timed(device, kSync, [&] { return inner().device_sync(device); });
}

Driver::Count CountingDriver::count(int device, Kind kind) {
  if (static_cast<unsigned>(device) >= rows_.size() || kind < 0 || kind >= kKinds) return {};
  const Count& count = rows_[device].kinds[kind];
  return {count.calls, scale_.to_ns(count.ns)};
}

}  // namespace vmm

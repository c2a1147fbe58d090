// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
#include "drivers/virtual_driver.h"

#include <string>

#include "drivers/reason.h"

namespace vmm {

VirtualDriver::VirtualDriver(int devices, uint64_t granularity, uint64_t lag_ns)
    : granularity_(granularity), streams_(static_cast<size_t>(devices), VirtualStreams(lag_ns)) {}

vmm_status VirtualDriver::not_admitted(int device) const {
  if (dead()) return refuse(VMM_DEAD, "the driver belongs to the parent of this process");
  return refuse(VMM_INVALID, "device must be from 0 to " + std::to_string(streams_.size() - 1) + ", but is " +
                                 std::to_string(device));
}

vmm_status VirtualDriver::not_granular(int device, uint64_t size, uint64_t at) const {
  if (const vmm_status status = admit(device)) return status;
  if (size == 0) return refuse(VMM_INVALID, "size must not be 0");
  const bool size_breaks = (size & (granularity_ - 1)) != 0;
  return refuse(VMM_INVALID, std::string(size_breaks ? "size" : "address") + " must be a multiple of " +
                                 std::to_string(granularity_) + ", but is " +
                                 (size_breaks ? std::to_string(size) : hex(at)));
}

vmm_status VirtualDriver::stream_query(int device, Stream stream) {
  if (const vmm_status status = admit(device)) return status;
  return streams_[device].query(stream);
}

vmm_status VirtualDriver::stream_wait(int device, Stream stream, Event event) {
  if (const vmm_status status = admit(device)) return status;
  return streams_[device].wait(stream, event);
}

bool VirtualDriver::capturing(int device, Stream stream) {
  return admit(device) == VMM_OK && streams_[device].capturing(stream);
}

vmm_status VirtualDriver::set_capturing(int device, Stream stream, bool on) {
  if (const vmm_status status = admit(device)) return status;
  streams_[device].set_capturing(stream, on);
  return VMM_OK;
}

vmm_status VirtualDriver::event_create(int device, Event* out) {
  if (const vmm_status status = admit(device)) return status;
  *out = streams_[device].event_create();
  return VMM_OK;
}

vmm_status VirtualDriver::event_destroy(int device, Event event) {
  if (const vmm_status status = admit(device)) return status;
  return streams_[device].event_destroy(event);
}

vmm_status VirtualDriver::event_record(int device, Event event, Stream stream) {
  if (const vmm_status status = admit(device)) return status;
  return streams_[device].event_record(event, stream);
}

vmm_status VirtualDriver::event_query(int device, Event event) {
  if (const vmm_status status = admit(device)) return status;
  return streams_[device].event_query(event);
}

vmm_status VirtualDriver::event_sync(int device, Event event) {
  if (const vmm_status status = admit(device)) return status;
  if (const vmm_status status = streams_[device].event_sync(event)) return status;
  advanced(device);
  return VMM_OK;
}

vmm_status VirtualDriver::device_sync(int device) {
  if (const vmm_status status = admit(device)) return status;
  streams_[device].sync();
  advanced(device);
  return VMM_OK;
}

vmm_status VirtualDriver::clock_set(int device, uint64_t t_ns) {
  if (const vmm_status status = admit(device)) return status;
  streams_[device].set(t_ns);
  advanced(device);
  return VMM_OK;
}

vmm_status VirtualDriver::clock_kernel(int device, Stream stream, uint64_t duration_ns) {
  if (const vmm_status status = admit(device)) return status;
  streams_[device].kernel(stream, duration_ns);
  return VMM_OK;
}

uint64_t VirtualDriver::clock_now(int device) { return admit(device) == VMM_OK ? streams_[device].now() : 0; }

}  // namespace vmm

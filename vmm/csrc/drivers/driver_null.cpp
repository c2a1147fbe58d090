// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
#include "drivers/driver_null.h"

#include <cstring>
#include <string>

#include "drivers/reason.h"

namespace vmm {
namespace {

constexpr uint64_t kDefaultBytes = 1ull << 40;
// Address ranges are never handed out twice and those of different devices never meet.
constexpr Address kFirstAddress = 1ull << 44;
constexpr Address kLastAddress = 1ull << 47;  // what user programs have on x86-64

}  // namespace

NullDriver::NullDriver(const DriverOptions& options)
    : VirtualDriver(options.devices, options.granularity, options.lag_ns),
      device_bytes_((options.device_bytes ? options.device_bytes : kDefaultBytes) & ~(granularity_ - 1)),
      alias_(options.alias),
      devices_(static_cast<size_t>(options.devices)) {
  const Address each = (kLastAddress - kFirstAddress) / devices_.size() & ~(granularity_ - 1);
  for (size_t i = 0; i < devices_.size(); ++i) {
    devices_[i].next_address = kFirstAddress + i * each;
    devices_[i].end_address = kFirstAddress + (i + 1) * each;
  }
}

Capabilities NullDriver::capabilities(int) {
  Capabilities result;
  result.granularity = granularity_;
  result.devices = static_cast<int>(devices_.size());
  result.alias = alias_;
  result.logical_clock = true;
  return result;
}

vmm_status NullDriver::va_reserve(int device, uint64_t size, Address* out) {
  if (const vmm_status status = admit(device, size)) return status;
  Device& state = devices_[device];
  if (size > state.end_address - state.next_address) {
    return refuse(VMM_OUT_OF_MEMORY, "the addresses of the null device are used up");
  }
  *out = state.next_address;
  state.next_address += size;
  return VMM_OK;
}

vmm_status NullDriver::va_free(int device, Address base, uint64_t size) { return admit(device, size, base); }

vmm_status NullDriver::page_create(int device, uint64_t size, Handle* out) {
  if (const vmm_status status = admit(device, size)) return status;
  Device& state = devices_[device];
  if (size > device_bytes_ - state.used) {
    return refuse(VMM_OUT_OF_MEMORY, "all of the " + std::to_string(device_bytes_) + " bytes of the null device " +
                                         std::to_string(device) + " are in use");
  }
  state.used += size;
  *out = state.next_page++;
  return VMM_OK;
}

vmm_status NullDriver::page_release(int device, uint64_t size, Handle) {
  if (const vmm_status status = admit(device, size)) return status;
  Device& state = devices_[device];
  if (size > state.used) return refuse(VMM_INVALID, "more bytes were released than created");
  state.used -= size;
  return VMM_OK;
}

vmm_status NullDriver::map(int device, Address at, uint64_t size, Handle) { return admit(device, size, at); }

vmm_status NullDriver::unmap(int device, Address at, uint64_t size) { return admit(device, size, at); }

vmm_status NullDriver::set_access(int device, Address at, uint64_t size) { return admit(device, size, at); }

vmm_status NullDriver::memory_info(int device, uint64_t* free, uint64_t* total) {
  if (const vmm_status status = admit(device)) return status;
  *free = device_bytes_ - devices_[device].used;
  *total = device_bytes_;
  return VMM_OK;
}

vmm_status NullDriver::copy_out(int device, void* to, Address, uint64_t size) {
  if (const vmm_status status = device_sync(device)) return status;
  std::memset(to, 0, size);
  return VMM_OK;
}

vmm_status NullDriver::copy_in(int device, Address, const void*, uint64_t) { return device_sync(device); }

vmm_status NullDriver::page_export(int device, Handle, int*) {
  if (const vmm_status status = admit(device)) return status;
  return refuse(VMM_UNSUPPORTED, "a page of the null driver has no memory that could be exported");
}

}  // namespace vmm

// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
//
// A device of pure arithmetic: it counts bytes and hands out numbers, so that a trace of a machine
// bigger than this one runs at the speed of the allocator. It trusts its caller about what is mapped;
// the checking decorator does not.

#pragma once

#include <vector>

#include "drivers/virtual_driver.h"

namespace vmm {

class NullDriver final : public VirtualDriver {
 public:
  explicit NullDriver(const DriverOptions& options);

  const char* name() const override { return "null"; }
  Capabilities capabilities(int device) override;

  vmm_status va_reserve(int device, uint64_t size, Address* out) override;
  vmm_status va_free(int device, Address base, uint64_t size) override;
  vmm_status page_create(int device, uint64_t size, Handle* out) override;
  vmm_status page_release(int device, uint64_t size, Handle page) override;
  vmm_status map(int device, Address at, uint64_t size, Handle page) override;
  vmm_status unmap(int device, Address at, uint64_t size) override;
  vmm_status set_access(int device, Address at, uint64_t size) override;
  vmm_status memory_info(int device, uint64_t* free, uint64_t* total) override;

  // There is no content: what comes out is zero.
  vmm_status copy_out(int device, void* to, Address from, uint64_t size) override;
  vmm_status copy_in(int device, Address to, const void* from, uint64_t size) override;
  vmm_status page_export(int device, Handle page, int* fd) override;

 private:
  struct alignas(64) Device {  // devices are used by different threads
    uint64_t used = 0;
    Address next_address = 0, end_address = 0;
    Handle next_page = 1;
  };

  const uint64_t device_bytes_;
  const bool alias_;
  std::vector<Device> devices_;
};

}  // namespace vmm

// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
//
// A device made of the memory of this machine: contents follow a page to its new address, two mappings
// of a page are one memory, and a touch of what is not mapped is a fault.
//
// After fork() the mappings stay where they are in the child, so that what was allocated before can be
// read there. They are shared, not copied: a write of either process is seen by the other, as with the
// shared memory of torch, and memory that the parent frees may soon hold something else. So a child that
// wants the state of the moment of the fork (to save it, say) must be given a copy. The driver itself
// serves the parent only.

#pragma once

#include <memory>
#include <vector>

#include "drivers/host_kernels.h"
#include "drivers/host_pages.h"
#include "drivers/mapping_table.h"
#include "drivers/virtual_driver.h"

namespace vmm {

class HostDriver final : public VirtualDriver {
 public:
  explicit HostDriver(const DriverOptions& options);
  ~HostDriver() override;

  const char* name() const override { return "host"; }
  Capabilities capabilities(int device) override;

  vmm_status va_reserve(int device, uint64_t size, Address* out) override;
  vmm_status va_free(int device, Address base, uint64_t size) override;
  vmm_status page_create(int device, uint64_t size, Handle* out) override;
  vmm_status page_release(int device, uint64_t size, Handle page) override;
  vmm_status map(int device, Address at, uint64_t size, Handle page) override;
  vmm_status unmap(int device, Address at, uint64_t size) override;
  vmm_status set_access(int device, Address at, uint64_t size) override;
  vmm_status memory_info(int device, uint64_t* free, uint64_t* total) override;
  vmm_status copy_out(int device, void* to, Address from, uint64_t size) override;
  vmm_status copy_in(int device, Address to, const void* from, uint64_t size) override;
  // The position of the descriptor is the offset of the page.
  vmm_status page_export(int device, Handle page, int* fd) override;

  // Queues work that touches memory when its time has come; see host_kernels.h.
  vmm_status kernel(int device, Stream stream, const HostKernel& kernel, uint64_t duration_ns);
  // What the kernels that ran found wrong, "" if nothing.
  std::string violations(int device) const;

 private:
  struct Device {
    Device(uint64_t bytes, uint64_t granularity) : pages(bytes, granularity) {}
    HostPages pages;
    MappingTable table;
    HostKernels kernels;
  };

  void advanced(int device) override;

  const bool alias_;
  const uint64_t max_pages_;
  std::vector<std::unique_ptr<Device>> devices_;
};

}  // namespace vmm

// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
//
// The virtual memory of CUDA devices, in their primary contexts, as the runtime and torch use them. A
// context is created at the first call that needs one, which `capabilities` does not.
//
// set_access gives access to the device of the page alone; copies between devices work without more.

#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "driver.h"
#include "drivers/cuda_api.h"

namespace vmm {

class CudaDriver final : public Driver {
 public:
  // Null and a sentence if this machine cannot.
  static std::unique_ptr<CudaDriver> open(const DriverOptions& options, std::string* error);
  ~CudaDriver() override;

  const char* name() const override { return "cuda"; }
  Capabilities capabilities(int device) override;

  vmm_status va_reserve(int device, uint64_t size, Address* out) override;
  vmm_status va_free(int device, Address base, uint64_t size) override;
  vmm_status page_create(int device, uint64_t size, Handle* out) override;
  vmm_status page_release(int device, uint64_t size, Handle page) override;
  vmm_status map(int device, Address at, uint64_t size, Handle page) override;
  vmm_status unmap(int device, Address at, uint64_t size) override;
  vmm_status set_access(int device, Address at, uint64_t size) override;
  vmm_status memory_info(int device, uint64_t* free, uint64_t* total) override;

  vmm_status stream_query(int device, Stream stream) override;
  vmm_status stream_wait(int device, Stream stream, Event event) override;
  bool capturing(int device, Stream stream) override;

  vmm_status event_create(int device, Event* out) override;
  vmm_status event_destroy(int device, Event event) override;
  vmm_status event_record(int device, Event event, Stream stream) override;
  vmm_status event_query(int device, Event event) override;
  vmm_status event_sync(int device, Event event) override;
  vmm_status device_sync(int device) override;

  vmm_status copy_out(int device, void* to, Address from, uint64_t size) override;
  vmm_status copy_in(int device, Address to, const void* from, uint64_t size) override;
  vmm_status page_export(int device, Handle page, int* fd) override;

  vmm_status clock_set(int device, uint64_t t_ns) override;
  vmm_status clock_kernel(int device, Stream stream, uint64_t duration_ns) override;
  uint64_t clock_now(int) override { return 0; }

  void abandon() override { dead_.store(true, std::memory_order_relaxed); }

 private:
  struct Device {
    cuda::Device number = 0;
    cuda::Context context = nullptr;  // retained at the first use
    uint64_t granularity = 0;
    bool rdma = false, posix_fd = false;
    bool flags_proven = false;  // a page was created with these two
    std::atomic<bool> lost{false};
  };

  CudaDriver(const cuda::Api& api, bool alias) : api_(api), alias_(alias) {}
  std::string add_device(int index);  // the sentence if it will not do

  cuda::AllocationProp page_properties(const Device& device) const;
  cuda::Result create(Device& device, uint64_t size, cuda::AllocationHandle* out);
  // Runs `call` in the context of the device and makes a status of its result.
  template <class Call>
  vmm_status run(int device, const char* name, const Call& call);
  vmm_status admit(int device);
  vmm_status status_of(Device& device, const char* name, cuda::Result result);

  const cuda::Api& api_;
  const bool alias_;
  std::vector<std::unique_ptr<Device>> devices_;
  std::atomic<bool> dead_{false};
};

}  // namespace vmm

// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
//
// A decorator that looks at every call in one place, before it goes down and after it came back.

#pragma once

#include <memory>
#include <utility>

#include "drivers/calls.h"
#include "drivers/forwarding.h"

namespace vmm {

class Intercepting : public Forwarding {
 public:
  using Forwarding::Forwarding;

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
  vmm_status event_create(int device, Event* out) override;
  vmm_status event_destroy(int device, Event event) override;
  vmm_status event_record(int device, Event event, Stream stream) override;
  vmm_status event_query(int device, Event event) override;
  vmm_status event_sync(int device, Event event) override;
  vmm_status device_sync(int device) override;
  vmm_status copy_out(int device, void* to, Address from, uint64_t size) override;
  vmm_status copy_in(int device, Address to, const void* from, uint64_t size) override;
  vmm_status page_export(int device, Handle page, int* fd) override;

 protected:
  struct Site {
    int device;
    Call call;
    Address at = 0;  // 0 where the call names none
    uint64_t size = 0;
  };
  // Anything but VMM_OK is the answer, and the call does not go down.
  virtual vmm_status before(const Site& site) = 0;
  virtual void after(const Site& site, vmm_status status) = 0;

 private:
  template <class Down>
  vmm_status pass(const Site& site, const Down& down);
};

}  // namespace vmm

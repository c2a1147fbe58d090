// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
//
// The base of the decorators: every call goes to the driver below.

#pragma once

#include <memory>
#include <utility>

#include "driver.h"

namespace vmm {

class Forwarding : public Driver {
 public:
  explicit Forwarding(std::unique_ptr<Driver> inner) : inner_(std::move(inner)) {}
  Driver& inner() const { return *inner_; }

  const char* name() const override { return inner_->name(); }
  Capabilities capabilities(int device) override { return inner_->capabilities(device); }

  vmm_status va_reserve(int device, uint64_t size, Address* out) override {
    return inner_->va_reserve(device, size, out);
  }
  vmm_status va_free(int device, Address base, uint64_t size) override { return inner_->va_free(device, base, size); }
  vmm_status page_create(int device, uint64_t size, Handle* out) override {
    return inner_->page_create(device, size, out);
  }
  vmm_status page_release(int device, uint64_t size, Handle page) override {
    return inner_->page_release(device, size, page);
  }
  vmm_status map(int device, Address at, uint64_t size, Handle page) override {
    return inner_->map(device, at, size, page);
  }
  vmm_status unmap(int device, Address at, uint64_t size) override { return inner_->unmap(device, at, size); }
  vmm_status set_access(int device, Address at, uint64_t size) override { return inner_->set_access(device, at, size); }
  vmm_status memory_info(int device, uint64_t* free, uint64_t* total) override {
    return inner_->memory_info(device, free, total);
  }

  vmm_status stream_query(int device, Stream stream) override { return inner_->stream_query(device, stream); }
  vmm_status stream_wait(int device, Stream stream, Event event) override {
    return inner_->stream_wait(device, stream, event);
  }
  bool capturing(int device, Stream stream) override { return inner_->capturing(device, stream); }

  vmm_status event_create(int device, Event* out) override { return inner_->event_create(device, out); }
  vmm_status event_destroy(int device, Event event) override { return inner_->event_destroy(device, event); }
  vmm_status event_record(int device, Event event, Stream stream) override {
    return inner_->event_record(device, event, stream);
  }
  vmm_status event_query(int device, Event event) override { return inner_->event_query(device, event); }
  vmm_status event_sync(int device, Event event) override { return inner_->event_sync(device, event); }
  vmm_status device_sync(int device) override { return inner_->device_sync(device); }

  vmm_status copy_out(int device, void* to, Address from, uint64_t size) override {
    return inner_->copy_out(device, to, from, size);
  }
  vmm_status copy_in(int device, Address to, const void* from, uint64_t size) override {
    return inner_->copy_in(device, to, from, size);
  }
  vmm_status page_export(int device, Handle page, int* fd) override { return inner_->page_export(device, page, fd); }

  vmm_status clock_set(int device, uint64_t t_ns) override { return inner_->clock_set(device, t_ns); }
  vmm_status clock_kernel(int device, Stream stream, uint64_t duration_ns) override {
    return inner_->clock_kernel(device, stream, duration_ns);
  }
  uint64_t clock_now(int device) override { return inner_->clock_now(device); }

  void abandon() override { inner_->abandon(); }
  Count count(int device, Kind kind) override { return inner_->count(device, kind); }

 private:
  std::unique_ptr<Driver> inner_;
};

// The first layer of type `Layer` in a chain, null if there is none.
template <class Layer>
Layer* find_layer(Driver* driver) {
  while (driver) {
    if (auto* layer = dynamic_cast<Layer*>(driver)) return layer;
    auto* forwarding = dynamic_cast<Forwarding*>(driver);
    driver = forwarding ? &forwarding->inner() : nullptr;
  }
  return nullptr;
}

}  // namespace vmm

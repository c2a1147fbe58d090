// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
#include "drivers/driver_c_api.h"

#include <memory>
#include <string>
#include <utility>

#include "driver.h"
#include "drivers/driver_checking.h"
#include "drivers/driver_host.h"
#include "drivers/driver_latency.h"
#include "drivers/failure_rules.h"
#include "drivers/options_text.h"
#include "drivers/reason.h"

struct vmm_driver {
  std::unique_ptr<vmm::Driver> chain;
};

namespace {

using namespace vmm;

// Keeps a text alive for the caller.
const char* lend(std::string text) {
  thread_local std::string lent;
  lent = std::move(text);
  return lent.c_str();
}

}  // namespace

extern "C" {

vmm_status vmm_driver_open(const char* options, vmm_driver** out) {
  std::string error;
  const auto parsed = parse_options(options ? options : "", &error);
  if (!parsed) return refuse(VMM_INVALID, error);
  std::unique_ptr<Driver> chain = open_driver(*parsed, &error);
  if (!chain) return refuse(VMM_INVALID, error);
  *out = new vmm_driver{std::move(chain)};
  return VMM_OK;
}

void vmm_driver_close(vmm_driver* driver) { delete driver; }

const char* vmm_driver_last_error() { return last_reason(); }

const char* vmm_driver_name(vmm_driver* driver) { return driver->chain->name(); }

vmm_status vmm_driver_get_capabilities(vmm_driver* driver, int device, vmm_driver_capabilities* out) {
  const Capabilities all = driver->chain->capabilities(device);
  *out = {all.granularity,   all.max_pages,   all.devices, all.alias,
          all.logical_clock, all.host_access, all.rdma,    all.posix_fd};
  return VMM_OK;
}

vmm_status vmm_driver_va_reserve(vmm_driver* driver, int device, uint64_t size, uint64_t* out) {
  return driver->chain->va_reserve(device, size, out);
}

vmm_status vmm_driver_va_free(vmm_driver* driver, int device, uint64_t base, uint64_t size) {
  return driver->chain->va_free(device, base, size);
}

vmm_status vmm_driver_page_create(vmm_driver* driver, int device, uint64_t size, uint64_t* out) {
  return driver->chain->page_create(device, size, out);
}

vmm_status vmm_driver_page_release(vmm_driver* driver, int device, uint64_t size, uint64_t page) {
  return driver->chain->page_release(device, size, page);
}

vmm_status vmm_driver_map(vmm_driver* driver, int device, uint64_t at, uint64_t size, uint64_t page) {
  return driver->chain->map(device, at, size, page);
}

vmm_status vmm_driver_unmap(vmm_driver* driver, int device, uint64_t at, uint64_t size) {
  return driver->chain->unmap(device, at, size);
}

vmm_status vmm_driver_set_access(vmm_driver* driver, int device, uint64_t at, uint64_t size) {
  return driver->chain->set_access(device, at, size);
}

vmm_status vmm_driver_memory_info(vmm_driver* driver, int device, uint64_t* free, uint64_t* total) {
  return driver->chain->memory_info(device, free, total);
}

vmm_status vmm_driver_stream_query(vmm_driver* driver, int device, uint64_t stream) {
  return driver->chain->stream_query(device, stream);
}

vmm_status vmm_driver_stream_wait(vmm_driver* driver, int device, uint64_t stream, uint64_t event) {
  return driver->chain->stream_wait(device, stream, event);
}

int vmm_driver_capturing(vmm_driver* driver, int device, uint64_t stream) {
  return driver->chain->capturing(device, stream);
}

vmm_status vmm_driver_event_create(vmm_driver* driver, int device, uint64_t* out) {
  return driver->chain->event_create(device, out);
}

vmm_status vmm_driver_event_destroy(vmm_driver* driver, int device, uint64_t event) {
  return driver->chain->event_destroy(device, event);
}

vmm_status vmm_driver_event_record(vmm_driver* driver, int device, uint64_t event, uint64_t stream) {
  return driver->chain->event_record(device, event, stream);
}

vmm_status vmm_driver_event_query(vmm_driver* driver, int device, uint64_t event) {
  return driver->chain->event_query(device, event);
}

vmm_status vmm_driver_event_sync(vmm_driver* driver, int device, uint64_t event) {
  return driver->chain->event_sync(device, event);
}

vmm_status vmm_driver_device_sync(vmm_driver* driver, int device) { return driver->chain->device_sync(device); }

vmm_status vmm_driver_copy_out(vmm_driver* driver, int device, void* to, uint64_t from, uint64_t size) {
  return driver->chain->copy_out(device, to, from, size);
}

vmm_status vmm_driver_copy_in(vmm_driver* driver, int device, uint64_t to, const void* from, uint64_t size) {
  return driver->chain->copy_in(device, to, from, size);
}

vmm_status vmm_driver_page_export(vmm_driver* driver, int device, uint64_t page, int* fd) {
  return driver->chain->page_export(device, page, fd);
}

vmm_status vmm_driver_clock_set(vmm_driver* driver, int device, uint64_t t_ns) {
  return driver->chain->clock_set(device, t_ns);
}

vmm_status vmm_driver_clock_kernel(vmm_driver* driver, int device, uint64_t stream, uint64_t duration_ns) {
  return driver->chain->clock_kernel(device, stream, duration_ns);
}

uint64_t vmm_driver_clock_now(vmm_driver* driver, int device) { return driver->chain->clock_now(device); }

void vmm_driver_abandon(vmm_driver* driver) { driver->chain->abandon(); }

vmm_status vmm_driver_count(vmm_driver* driver, int device, int kind, uint64_t* calls, uint64_t* ns) {
  if (kind < 0 || kind >= Driver::kKinds) {
    return refuse(VMM_INVALID,
                  "kind must be from 0 to " + std::to_string(Driver::kKinds - 1) + ", but is " + std::to_string(kind));
  }
  const Driver::Count count = driver->chain->count(device, static_cast<Driver::Kind>(kind));
  *calls = count.calls;
  *ns = count.ns;
  return VMM_OK;
}

uint64_t vmm_driver_modelled_ns(vmm_driver* driver, int device) {
  const auto* layer = find_layer<LatencyDriver>(driver->chain.get());
  return layer ? layer->modelled_ns(device) : 0;
}

const char* vmm_driver_violations(vmm_driver* driver) {
  const auto* layer = find_layer<CheckingDriver>(driver->chain.get());
  return lend(layer ? layer->violations() : "");
}

const char* vmm_driver_leaks(vmm_driver* driver) {
  const auto* layer = find_layer<CheckingDriver>(driver->chain.get());
  return lend(layer ? layer->leaks() : "");
}

vmm_status vmm_driver_set_capturing(vmm_driver* driver, int device, uint64_t stream, int on) {
  auto* layer = find_layer<VirtualDriver>(driver->chain.get());
  if (!layer) return refuse(VMM_UNSUPPORTED, "only the null and the host driver have streams that do not exist");
  return layer->set_capturing(device, stream, on != 0);
}

vmm_status vmm_driver_host_kernel(vmm_driver* driver, int device, uint64_t stream, uint64_t at, uint64_t size,
                                  int write, uint64_t stamp, uint64_t duration_ns) {
  auto* layer = find_layer<HostDriver>(driver->chain.get());
  if (!layer) return refuse(VMM_UNSUPPORTED, "only the host driver runs kernels that touch memory");
  return layer->kernel(device, stream, {at, size, write != 0, stamp}, duration_ns);
}

const char* vmm_driver_host_violations(vmm_driver* driver, int device) {
  const auto* layer = find_layer<HostDriver>(driver->chain.get());
  return lend(layer ? layer->violations(device) : "");
}

vmm_status vmm_driver_check_failures(const char* text) {
  std::string error;
  return parse_failures(text, &error) ? VMM_OK : refuse(VMM_INVALID, error);
}

}  // extern "C"

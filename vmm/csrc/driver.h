// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
//
// What the core asks of a machine: address ranges, physical pages, mappings, streams and events. Null
// (arithmetic), host (memfd and mmap) and cuda (libcuda opened at run time) stand behind it; decorators
// (checking, counting, failing, latency) wrap any of them and each other.
//
// No call throws and none blocks but device_sync and event_sync. The core calls under its device lock,
// so a driver needs no lock for what belongs to one device.

#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "vmm.h"

namespace vmm {

using Address = uint64_t;
using Handle = uint64_t;  // of a physical page, never 0
using Stream = uint64_t;
using Event = uint64_t;  // never 0

struct Capabilities {
  uint64_t granularity = 2u << 20;  // of every size and address below
  int devices = 1;
  bool alias = true;           // a page may be mapped at two addresses at once
  bool logical_clock = false;  // clock_set and clock_kernel work
  bool host_access = false;    // the CPU may touch mapped memory
  bool rdma = false;
  bool posix_fd = false;
  uint64_t max_pages = UINT64_MAX;  // more mapped pages than this are refused
};

class Driver {
 public:
  virtual ~Driver() = default;

  virtual const char* name() const = 0;
  virtual Capabilities capabilities(int device) = 0;

  virtual vmm_status va_reserve(int device, uint64_t size, Address* out) = 0;
  virtual vmm_status va_free(int device, Address base, uint64_t size) = 0;

  // A physical page of `size` bytes. VMM_OUT_OF_MEMORY when the device has no more.
  virtual vmm_status page_create(int device, uint64_t size, Handle* out) = 0;
  // The memory is gone after the last unmap. Content of a new page is undefined.
  virtual vmm_status page_release(int device, uint64_t size, Handle page) = 0;

  // One whole page at a granular address where nothing is mapped. Not accessible before set_access.
  virtual vmm_status map(int device, Address at, uint64_t size, Handle page) = 0;
  // A range that covers whole mappings. Takes effect at once: the caller knows that no queued work
  // uses it.
  virtual vmm_status unmap(int device, Address at, uint64_t size) = 0;
  // Makes a range of mapped pages readable and writable, in one call.
  virtual vmm_status set_access(int device, Address at, uint64_t size) = 0;

  virtual vmm_status memory_info(int device, uint64_t* free, uint64_t* total) = 0;

  // VMM_OK when all work queued so far is done, VMM_NOT_READY when not.
  virtual vmm_status stream_query(int device, Stream stream) = 0;
  virtual vmm_status stream_wait(int device, Stream stream, Event event) = 0;
  virtual bool capturing(int device, Stream stream) = 0;

  virtual vmm_status event_create(int device, Event* out) = 0;
  virtual vmm_status event_destroy(int device, Event event) = 0;
  virtual vmm_status event_record(int device, Event event, Stream stream) = 0;
  virtual vmm_status event_query(int device, Event event) = 0;
  virtual vmm_status event_sync(int device, Event event) = 0;
  virtual vmm_status device_sync(int device) = 0;

  // Between the device and host memory, after all queued work; done on return. For sleep and tests.
  virtual vmm_status copy_out(int device, void* to, Address from, uint64_t size) = 0;
  virtual vmm_status copy_in(int device, Address to, const void* from, uint64_t size) = 0;

  // A file descriptor that another process can import the page from. VMM_UNSUPPORTED if there is none.
  virtual vmm_status page_export(int device, Handle page, int* fd) = 0;

  // The logical clock. Time never goes back; VMM_UNSUPPORTED on real devices.
  virtual vmm_status clock_set(int device, uint64_t t_ns) = 0;
  virtual vmm_status clock_kernel(int device, Stream stream, uint64_t duration_ns) = 0;
  virtual uint64_t clock_now(int device) = 0;

  // The child of fork() calls this: nothing of the parent's device may be touched from now on.
  virtual void abandon() = 0;

  // Calls and nanoseconds by kind, if a counting decorator is in the chain (else zeros).
  enum Kind { kCreate, kRelease, kMap, kUnmap, kAccess, kReserve, kEvent, kWait, kSync, kKinds };
  struct Count {
    uint64_t calls = 0, ns = 0;
  };
  virtual Count count(int device, Kind kind) {
    (void)device, (void)kind;
    return {};
  }
};

struct DriverOptions {
  std::string driver = "null";  // null, host, cuda
  int devices = 1;
  uint64_t device_bytes = 0;  // null and host: the memory that the device pretends to have; 0: default
  uint64_t granularity = 0;   // null and host; 0: 2 MiB
  uint64_t lag_ns = 0;        // null and host: queued work is done this much after it was queued
  bool checking = false;      // wrap in the model that rejects overlap, double unmap and the like
  bool counting = true;
  std::string fail;     // failure injection, see driver_failing.h
  std::string latency;  // modelled cost of each call, see driver_latency.h
  bool alias = true;
};

// Builds the chain: latency(failing(counting(checking(driver)))). Returns null and a sentence on error.
std::unique_ptr<Driver> open_driver(const DriverOptions& options, std::string* error);

// What the driver said when it last refused something in this thread; "" if it never did.
const char* last_reason();

}  // namespace vmm

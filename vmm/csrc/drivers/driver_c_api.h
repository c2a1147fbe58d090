// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
//
// A bare driver behind a C interface, for tests and for backends that have an allocator of their own.
// Each call is that of driver.h with the same name; vmm_driver_last_error says why one refused.

#pragma once

#include <stddef.h>
#include <stdint.h>

#include "vmm.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct vmm_driver vmm_driver;

// `options` is one "name=value" a line with the names of DriverOptions; sizes may be like 64MiB and
// times like 30us, a switch is 0 or 1. Null or "" takes the defaults.
VMM_API vmm_status vmm_driver_open(const char* options, vmm_driver** out);
VMM_API void vmm_driver_close(vmm_driver* driver);
VMM_API const char* vmm_driver_last_error(void);  // of this thread, valid until its next call

typedef struct vmm_driver_capabilities {
  uint64_t granularity, max_pages;
  int32_t devices, alias, logical_clock, host_access, rdma, posix_fd;
} vmm_driver_capabilities;

VMM_API const char* vmm_driver_name(vmm_driver* driver);
VMM_API vmm_status vmm_driver_get_capabilities(vmm_driver* driver, int device, vmm_driver_capabilities* out);

VMM_API vmm_status vmm_driver_va_reserve(vmm_driver* driver, int device, uint64_t size, uint64_t* out);
VMM_API vmm_status vmm_driver_va_free(vmm_driver* driver, int device, uint64_t base, uint64_t size);
VMM_API vmm_status vmm_driver_page_create(vmm_driver* driver, int device, uint64_t size, uint64_t* out);
VMM_API vmm_status vmm_driver_page_release(vmm_driver* driver, int device, uint64_t size, uint64_t page);
VMM_API vmm_status vmm_driver_map(vmm_driver* driver, int device, uint64_t at, uint64_t size, uint64_t page);
VMM_API vmm_status vmm_driver_unmap(vmm_driver* driver, int device, uint64_t at, uint64_t size);
VMM_API vmm_status vmm_driver_set_access(vmm_driver* driver, int device, uint64_t at, uint64_t size);
VMM_API vmm_status vmm_driver_memory_info(vmm_driver* driver, int device, uint64_t* free, uint64_t* total);

VMM_API vmm_status vmm_driver_stream_query(vmm_driver* driver, int device, uint64_t stream);
VMM_API vmm_status vmm_driver_stream_wait(vmm_driver* driver, int device, uint64_t stream, uint64_t event);
VMM_API int vmm_driver_capturing(vmm_driver* driver, int device, uint64_t stream);
VMM_API vmm_status vmm_driver_event_create(vmm_driver* driver, int device, uint64_t* out);
VMM_API vmm_status vmm_driver_event_destroy(vmm_driver* driver, int device, uint64_t event);
VMM_API vmm_status vmm_driver_event_record(vmm_driver* driver, int device, uint64_t event, uint64_t stream);
VMM_API vmm_status vmm_driver_event_query(vmm_driver* driver, int device, uint64_t event);
VMM_API vmm_status vmm_driver_event_sync(vmm_driver* driver, int device, uint64_t event);
VMM_API vmm_status vmm_driver_device_sync(vmm_driver* driver, int device);

VMM_API vmm_status vmm_driver_copy_out(vmm_driver* driver, int device, void* to, uint64_t from, uint64_t size);
VMM_API vmm_status vmm_driver_copy_in(vmm_driver* driver, int device, uint64_t to, const void* from, uint64_t size);
VMM_API vmm_status vmm_driver_page_export(vmm_driver* driver, int device, uint64_t page, int* fd);

VMM_API vmm_status vmm_driver_clock_set(vmm_driver* driver, int device, uint64_t t_ns);
VMM_API vmm_status vmm_driver_clock_kernel(vmm_driver* driver, int device, uint64_t stream, uint64_t duration_ns);
VMM_API uint64_t vmm_driver_clock_now(vmm_driver* driver, int device);
VMM_API void vmm_driver_abandon(vmm_driver* driver);

// kind: a number of Driver::Kind. Zeros without the counting decorator.
VMM_API vmm_status vmm_driver_count(vmm_driver* driver, int device, int kind, uint64_t* calls, uint64_t* ns);
VMM_API uint64_t vmm_driver_modelled_ns(vmm_driver* driver, int device);  // of the latency decorator

// What the checking decorator found, one sentence a line; "" if nothing or without it. Valid until the
// next call of this thread.
VMM_API const char* vmm_driver_violations(vmm_driver* driver);
VMM_API const char* vmm_driver_leaks(vmm_driver* driver);

// Null and host: whether a stream is being captured, as a CUDA graph would.
VMM_API vmm_status vmm_driver_set_capturing(vmm_driver* driver, int device, uint64_t stream, int on);
// Host: a kernel that writes `stamp`, or expects to read it, when it ends (host_kernels.h), and what
// the kernels which ran found wrong.
VMM_API vmm_status vmm_driver_host_kernel(vmm_driver* driver, int device, uint64_t stream, uint64_t at, uint64_t size,
                                          int write, uint64_t stamp, uint64_t duration_ns);
VMM_API const char* vmm_driver_host_violations(vmm_driver* driver, int device);

// Whether `text` is of the language of failures: VMM_OK, or VMM_INVALID and the sentence.
VMM_API vmm_status vmm_driver_check_failures(const char* text);

#ifdef __cplusplus
}
#endif

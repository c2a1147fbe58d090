// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
#include "drivers/intercepting.h"

namespace vmm {

template <class Down>
vmm_status Intercepting::pass(const Site& site, const Down& down) {
  if (const vmm_status status = before(site)) return status;
  const vmm_status status = down();
  after(site, status);
  return status;
}

vmm_status Intercepting::va_reserve(int device, uint64_t size, Address* out) {
  return pass({device, Call::kReserve, 0, size}, [&] { return inner().va_reserve(device, size, out); });
}

vmm_status Intercepting::va_free(int device, Address base, uint64_t size) {
  return pass({device, Call::kVaFree, base, size}, [&] { return inner().va_free(device, base, size); });
}

vmm_status Intercepting::page_create(int device, uint64_t size, Handle* out) {
  return pass({device, Call::kCreate, 0, size}, [&] { return inner().page_create(device, size, out); });
}

vmm_status Intercepting::page_release(int device, uint64_t size, Handle page) {
  return pass({device, Call::kRelease, 0, size}, [&] { return inner().page_release(device, size, page); });
}

vmm_status Intercepting::map(int device, Address at, uint64_t size, Handle page) {
  return pass({device, Call::kMap, at, size}, [&] { return inner().map(device, at, size, page); });
}

vmm_status Intercepting::unmap(int device, Address at, uint64_t size) {
  return pass({device, Call::kUnmap, at, size}, [&] { return inner().unmap(device, at, size); });
}

vmm_status Intercepting::set_access(int device, Address at, uint64_t size) {
  return pass({device, Call::kSetAccess, at, size}, [&] { return inner().set_access(device, at, size); });
}

vmm_status Intercepting::memory_info(int device, uint64_t* free, uint64_t* total) {
  return pass({device, Call::kMemoryInfo}, [&] { return inner().memory_info(device, free, total); });
}

vmm_status Intercepting::stream_query(int device, Stream stream) {
  return pass({device, Call::kStreamQuery}, [&] { return inner().stream_query(device, stream); });
}

vmm_status Intercepting::stream_wait(int device, Stream stream, Event event) {
  return pass({device, Call::kStreamWait}, [&] { return inner().stream_wait(device, stream, event); });
}

vmm_status Intercepting::event_create(int device, Event* out) {
  return pass({device, Call::kEventCreate}, [&] { return inner().event_create(device, out); });
}

vmm_status Intercepting::event_destroy(int device, Event event) {
  return pass({device, Call::kEventDestroy}, [&] { return inner().event_destroy(device, event); });
}

vmm_status Intercepting::event_record(int device, Event event, Stream stream) {
  return pass({device, Call::kEventRecord}, [&] { return inner().event_record(device, event, stream); });
}

vmm_status Intercepting::event_query(int device, Event event) {
  return pass({device, Call::kEventQuery}, [&] { return inner().event_query(device, event); });
}

vmm_status Intercepting::event_sync(int device, Event event) {
  return pass({device, Call::kEventSync}, [&] { return inner().event_sync(device, event); });
}

vmm_status Intercepting::device_sync(int device) {
  return pass({device, Call::kDeviceSync}, [&] { return inner().device_sync(device); });
}

vmm_status Intercepting::copy_out(int device, void* to, Address from, uint64_t size) {
  return pass({device, Call::kCopyOut, from, size}, [&] { return inner().copy_out(device, to, from, size); });
}

vmm_status Intercepting::copy_in(int device, Address to, const void* from, uint64_t size) {
  return pass({device, Call::kCopyIn, to, size}, [&] { return inner().copy_in(device, to, from, size); });
}

vmm_status Intercepting::page_export(int device, Handle page, int* fd) {
  return pass({device, Call::kExport}, [&] { return inner().page_export(device, page, fd); });
}

}  // namespace vmm

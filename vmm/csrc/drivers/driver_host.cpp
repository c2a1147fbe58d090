// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
#include "drivers/driver_host.h"

#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <string>

#include "drivers/reason.h"

namespace vmm {
namespace {

// The kernel counts the mappings of a process, whoever made them.
std::atomic<uint64_t> mapped_pages{0};

// A page among pages that do not follow it in the file takes two mappings: its own and the hole beside
// it. A quarter of the limit is left to the rest of the process.
uint64_t safe_page_count() {
  uint64_t limit = 65530;  // the kernel's own default, where the file cannot be read
  std::ifstream("/proc/sys/vm/max_map_count") >> limit;
  return limit / 2 / 4 * 3;
}

uint64_t physical_bytes() {
  return static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

void* pointer(Address at) { return reinterpret_cast<void*>(at); }

vmm_status system_refused(const char* call, uint64_t size) {
  const std::string why = std::string(call) + " of " + std::to_string(size) + " bytes failed: " + std::strerror(errno);
  if (errno != ENOMEM) return refuse(VMM_DRIVER, why);
  return refuse(VMM_OUT_OF_MEMORY, why + " (or the process has more mappings than vm.max_map_count allows)");
}

// Makes the range what it was after va_reserve.
bool cover(Address at, uint64_t size) {
  constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
  return mmap(pointer(at), size, PROT_NONE, kFlags, -1, 0) != MAP_FAILED;
}

}  // namespace

HostDriver::HostDriver(const DriverOptions& options)
    : VirtualDriver(options.devices, options.granularity, options.lag_ns),
      alias_(options.alias),
      max_pages_(safe_page_count()) {
  const uint64_t bytes = options.device_bytes ? options.device_bytes : physical_bytes();
  for (int i = 0; i < options.devices; ++i) {
    devices_.push_back(std::make_unique<Device>(bytes & ~(granularity_ - 1), granularity_));
  }
}

HostDriver::~HostDriver() {
  for (const auto& device : devices_) {
    if (dead()) {
      device->pages.abandon();
      continue;
    }
    for (const auto& [base, size] : device->table.ranges()) munmap(pointer(base), size);
    mapped_pages -= device->table.mappings().size();
  }
}

Capabilities HostDriver::capabilities(int) {
  Capabilities result;
  result.granularity = granularity_;
  result.devices = static_cast<int>(devices_.size());
  result.alias = alias_;
  result.logical_clock = true;
  result.host_access = true;
  result.posix_fd = true;
  result.max_pages = max_pages_;
  return result;
}

vmm_status HostDriver::va_reserve(int device, uint64_t size, Address* out) {
  if (const vmm_status status = admit(device, size)) return status;
  // The kernel aligns to its own pages only: take more and give the ends back.
  const uint64_t taken = size + granularity_;
  if (taken < size) return refuse(VMM_OUT_OF_MEMORY, "no address space has " + std::to_string(size) + " bytes");
  void* memory = mmap(nullptr, taken, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return system_refused("mmap", taken);
  const Address begin = reinterpret_cast<Address>(memory);
  const Address base = (begin + granularity_ - 1) & ~(granularity_ - 1);
  if (base > begin) munmap(memory, base - begin);
  if (begin + taken > base + size) munmap(pointer(base + size), begin + taken - base - size);
  devices_[device]->table.reserve(base, size);
  *out = base;
  return VMM_OK;
}

vmm_status HostDriver::va_free(int device, Address base, uint64_t size) {
  if (const vmm_status status = admit(device, size, base)) return status;
  MappingTable& table = devices_[device]->table;
  if (std::string why = table.why_not_free(base, size); !why.empty()) return refuse(VMM_INVALID, why);
  if (munmap(pointer(base), size) != 0) return system_refused("munmap", size);
  table.free(base);
  return VMM_OK;
}

vmm_status HostDriver::page_create(int device, uint64_t size, Handle* out) {
  if (const vmm_status status = admit(device, size)) return status;
  return devices_[device]->pages.create(size, out);
}

vmm_status HostDriver::page_release(int device, uint64_t size, Handle page) {
  if (const vmm_status status = admit(device, size)) return status;
  return devices_[device]->pages.release(size, page);
}

vmm_status HostDriver::map(int device, Address at, uint64_t size, Handle page) {
  if (const vmm_status status = admit(device, size, at)) return status;
  Device& state = *devices_[device];
  if (std::string why = state.table.why_not_map(at, size); !why.empty()) return refuse(VMM_INVALID, why);
  if (state.pages.size_of(page) != size) {
    return refuse(VMM_INVALID, "there is no page " + std::to_string(page) + " of " + std::to_string(size) + " bytes");
  }
  if (mapped_pages.fetch_add(1) >= max_pages_) {
    --mapped_pages;
    return refuse(VMM_OUT_OF_MEMORY,
                  "the host driver maps at most " + std::to_string(max_pages_) +
                      " pages, so that the process stays below vm.max_map_count: raise that, or take bigger pages");
  }
  const auto offset = static_cast<off_t>(state.pages.offset_of(page));
  if (mmap(pointer(at), size, PROT_NONE, MAP_SHARED | MAP_FIXED, state.pages.file(), offset) == MAP_FAILED) {
    --mapped_pages;
    return system_refused("mmap", size);
  }
  state.table.map(at, size, page);
  state.pages.mapped(page);
  return VMM_OK;
}

vmm_status HostDriver::unmap(int device, Address at, uint64_t size) {
  if (const vmm_status status = admit(device, size, at)) return status;
  Device& state = *devices_[device];
  if (std::string why = state.table.why_not_unmap(at, size); !why.empty()) return refuse(VMM_INVALID, why);
  if (!cover(at, size)) return system_refused("mmap", size);
  for (const Handle page : state.table.unmap(at, size)) {
    state.pages.unmapped(page);
    --mapped_pages;
  }
  return VMM_OK;
}

vmm_status HostDriver::set_access(int device, Address at, uint64_t size) {
  if (const vmm_status status = admit(device, size, at)) return status;
  MappingTable& table = devices_[device]->table;
  if (std::string why = table.why_not_set_access(at, size); !why.empty()) return refuse(VMM_INVALID, why);
  if (mprotect(pointer(at), size, PROT_READ | PROT_WRITE) != 0) return system_refused("mprotect", size);
  table.set_access(at, size);
  return VMM_OK;
}

vmm_status HostDriver::memory_info(int device, uint64_t* free, uint64_t* total) {
  if (const vmm_status status = admit(device)) return status;
  const HostPages& pages = devices_[device]->pages;
  *free = pages.total() - pages.used();
  *total = pages.total();
  return VMM_OK;
}

vmm_status HostDriver::copy_out(int device, void* to, Address from, uint64_t size) {
  if (const vmm_status status = device_sync(device)) return status;
  const std::string why = devices_[device]->table.why_not_touch(from, size);
  if (!why.empty()) return refuse(VMM_INVALID, why);
  std::memcpy(to, pointer(from), size);
  return VMM_OK;
}

vmm_status HostDriver::copy_in(int device, Address to, const void* from, uint64_t size) {
  if (const vmm_status status = device_sync(device)) return status;
  const std::string why = devices_[device]->table.why_not_touch(to, size);
  if (!why.empty()) return refuse(VMM_INVALID, why);
  std::memcpy(pointer(to), from, size);
  return VMM_OK;
}

vmm_status HostDriver::page_export(int device, Handle page, int* fd) {
  if (const vmm_status status = admit(device)) return status;
  return devices_[device]->pages.open_at(page, fd);
}

vmm_status HostDriver::kernel(int device, Stream stream, const HostKernel& kernel, uint64_t duration_ns) {
  if (const vmm_status status = admit(device)) return status;
  Device& state = *devices_[device];
  VirtualStreams& streams = streams_[device];
  const uint64_t end = streams.end_of(stream, duration_ns);
  if (const vmm_status status = state.kernels.queue(state.table, kernel, end)) return status;
  streams.kernel(stream, duration_ns);
  return VMM_OK;
}

std::string HostDriver::violations(int device) const {
  return admit(device) == VMM_OK ? devices_[device]->kernels.violations() : "";
}

void HostDriver::advanced(int device) {
  Device& state = *devices_[device];
  state.kernels.run(state.table, streams_[device].now());
}

}  // namespace vmm

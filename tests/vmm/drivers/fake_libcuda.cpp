// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
//
// A libcuda.so.1 without a GPU: the calls of cuda_api.h over a memory file, with the rules that the
// driver documents and a few levers for tests. It is strict where the real one may be lenient.

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <map>
#include <set>
#include <string>

#include "drivers/cuda_api.h"

using namespace vmm::cuda;

namespace {

constexpr size_t kGranularity = 2u << 20;
constexpr size_t kPages = 64;
constexpr int kImplicitCapture = 906, kAlreadyMapped = 208;

struct Mapping {
  size_t size;
  AllocationHandle handle;
};
struct Allocation {
  size_t size;
  off_t offset;
  int handle_types, rdma;
};

int file = -1;
std::map<AllocationHandle, Allocation> allocations;
std::map<DevicePtr, size_t> ranges;
std::map<DevicePtr, Mapping> mappings;
std::set<off_t> offsets;  // in use, by an allocation or by a mapping of a released one
std::map<AllocationHandle, off_t> released;
AllocationHandle next_handle = 1000;

std::map<std::string, long> levers{{"devices", 2}, {"vmm", 1}, {"posix_fd", 1}, {"rdma", 1}, {"rdma_works", 1}};
std::map<std::string, long> seen;
std::map<std::string, std::pair<Result, long>> failures;
std::set<StreamHandle> busy, captured;
struct FakeEvent {
  StreamHandle stream;
};

thread_local Context current = nullptr;
thread_local int pushed = 0, mode = 0;

// What every call that needs a context begins with.
Result begin(const char* name, bool context = true) {
  ++seen[name];
  if (context && !current) return 201;
  if (context && mode != kCaptureModeRelaxed) ++seen["not relaxed"];
  const auto it = failures.find(name);
  if (it == failures.end() || it->second.second == 0) return kSuccess;
  --it->second.second;
  return it->second.first;
}
#define BEGIN(...) \
  if (const Result result = begin(__func__ __VA_OPT__(, ) __VA_ARGS__)) return result

bool granular(uint64_t value) { return value % kGranularity == 0; }

void* pointer(DevicePtr at) { return reinterpret_cast<void*>(at); }

void forget(AllocationHandle handle) {
  for (const auto& [at, mapping] : mappings) {
    if (mapping.handle == handle) return;
  }
  const auto it = released.find(handle);
  if (it == released.end()) return;
  fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, it->second, kGranularity);
  offsets.erase(it->second);
  released.erase(it);
}

}  // namespace

#define EXPORT extern "C" __attribute__((visibility("default")))

// ---- The levers ----

EXPORT void fake_set(const char* lever, long value) { levers[lever] = value; }
EXPORT long fake_seen(const char* what) {
  if (!std::strcmp(what, "pushed")) return pushed;
  if (!std::strcmp(what, "mode")) return mode;
  return seen[what];
}
EXPORT void fake_fail(const char* call, int result, long times) { failures[call] = {result, times}; }
EXPORT void fake_busy(StreamHandle stream, int on) { on ? void(busy.insert(stream)) : void(busy.erase(stream)); }
EXPORT void fake_capture(StreamHandle stream, int on) {
  on ? void(captured.insert(stream)) : void(captured.erase(stream));
}

// ---- The library ----

EXPORT Result cuInit(unsigned) {
  BEGIN(false);
  file = memfd_create("fake-libcuda", MFD_CLOEXEC);
  return ftruncate(file, kPages * kGranularity) == 0 ? kSuccess : 999;
}

EXPORT Result cuGetErrorName(Result result, const char** name) {
  static const std::map<Result, const char*> names{{1, "CUDA_ERROR_INVALID_VALUE"},
                                                   {2, "CUDA_ERROR_OUT_OF_MEMORY"},
                                                   {100, "CUDA_ERROR_NO_DEVICE"},
                                                   {700, "CUDA_ERROR_ILLEGAL_ADDRESS"},
                                                   {800, "CUDA_ERROR_NOT_PERMITTED"}};
  const auto it = names.find(result);
  if (it == names.end()) return kInvalidValue;
  *name = it->second;
  return kSuccess;
}

EXPORT Result cuDeviceGetCount(int* count) {
  BEGIN(false);
  *count = static_cast<int>(levers["devices"]);
  return kSuccess;
}

EXPORT Result cuDeviceGet(Device* device, int ordinal) {
  BEGIN(false);
  *device = ordinal;
  return kSuccess;
}

EXPORT Result cuDeviceGetAttribute(int* value, int attribute, Device) {
  BEGIN(false);
  const char* lever = attribute == kAttributeVmm ? "vmm" : attribute == kAttributePosixFd ? "posix_fd" : "rdma";
  *value = static_cast<int>(levers[lever]);
  return kSuccess;
}

EXPORT Result cuDevicePrimaryCtxRetain(Context* context, Device device) {
  BEGIN(false);
  *context = reinterpret_cast<Context>(static_cast<uintptr_t>(device) + 77);
  return kSuccess;
}

// The last user of the context leaves, and the memory goes with it.
EXPORT Result cuDevicePrimaryCtxRelease_v2(Device) {
  if (const Result result = begin("cuDevicePrimaryCtxRelease", false)) return result;
  for (const auto& [base, size] : ranges) munmap(pointer(base), size);
  ranges.clear(), mappings.clear(), allocations.clear(), released.clear(), offsets.clear();
  fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, kPages * kGranularity);
  return kSuccess;
}

EXPORT Result cuCtxGetCurrent(Context* context) {
  *context = current;
  return kSuccess;
}

EXPORT Result cuCtxPushCurrent_v2(Context context) {
  current = context;
  ++pushed;
  return kSuccess;
}

EXPORT Result cuCtxPopCurrent_v2(Context* context) {
  *context = current;
  current = nullptr;
  --pushed;
  return kSuccess;
}

EXPORT Result cuThreadExchangeStreamCaptureMode(int* other) {
  std::swap(mode, *other);
  return kSuccess;
}

EXPORT Result cuCtxSynchronize() {
  BEGIN();
  busy.clear();
  return kSuccess;
}

EXPORT Result cuMemGetInfo_v2(size_t* free, size_t* total) {
  BEGIN();
  *total = kPages * kGranularity;
  *free = *total - offsets.size() * kGranularity;
  return kSuccess;
}

EXPORT Result cuMemAddressReserve(DevicePtr* out, size_t size, size_t alignment, DevicePtr, unsigned long long) {
  BEGIN();
  if (size == 0 || !granular(size)) return kInvalidValue;
  void* memory = mmap(nullptr, size + alignment, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return kOutOfMemory;
  *out = (reinterpret_cast<DevicePtr>(memory) + alignment - 1) / alignment * alignment;
  ranges[*out] = size;
  return kSuccess;
}

EXPORT Result cuMemAddressFree(DevicePtr base, size_t size) {
  BEGIN();
  const auto it = ranges.find(base);
  if (it == ranges.end() || it->second != size) return kInvalidValue;
  const auto inside = mappings.lower_bound(base);
  if (inside != mappings.end() && inside->first < base + size) return kInvalidValue;
  munmap(pointer(base), size);
  ranges.erase(it);
  return kSuccess;
}

EXPORT Result cuMemCreate(AllocationHandle* out, size_t size, const AllocationProp* properties, unsigned long long) {
  BEGIN();
  if (properties->type != kAllocationPinned || properties->location.type != kLocationDevice) return kInvalidValue;
  if (size != kGranularity) return kInvalidValue;  // pages of one size are enough here
  if (properties->alloc_flags.gpu_direct_rdma_capable && !levers["rdma_works"]) return kNotPermitted;
  off_t offset = 0;
  while (offsets.count(offset)) offset += kGranularity;
  if (offset >= static_cast<off_t>(kPages * kGranularity)) return kOutOfMemory;
  offsets.insert(offset);
  *out = next_handle++;
  allocations[*out] = {size, offset, properties->requested_handle_types,
                       properties->alloc_flags.gpu_direct_rdma_capable};
  seen["handle types"] = properties->requested_handle_types;
  seen["rdma"] = properties->alloc_flags.gpu_direct_rdma_capable;
  return kSuccess;
}

EXPORT Result cuMemRelease(AllocationHandle handle) {
  BEGIN();
  const auto it = allocations.find(handle);
  if (it == allocations.end()) return kInvalidValue;
  released[handle] = it->second.offset;
  allocations.erase(it);
  forget(handle);
  return kSuccess;
}

EXPORT Result cuMemMap(DevicePtr at, size_t size, size_t offset, AllocationHandle handle, unsigned long long flags) {
  BEGIN();
  const auto it = allocations.find(handle);
  if (it == allocations.end() || it->second.size != size || offset != 0 || flags != 0) return kInvalidValue;
  if (!granular(at)) return kInvalidValue;
  const auto above = ranges.upper_bound(at);
  if (above == ranges.begin() || std::prev(above)->first + std::prev(above)->second < at + size) return kInvalidValue;
  if (mappings.count(at)) return kAlreadyMapped;
  mmap(pointer(at), size, PROT_NONE, MAP_SHARED | MAP_FIXED, file, it->second.offset);
  mappings[at] = {size, handle};
  return kSuccess;
}

EXPORT Result cuMemUnmap(DevicePtr at, size_t size) {
  BEGIN();
  if (size == 0 || !granular(size)) return kInvalidValue;
  for (DevicePtr next = at; next < at + size; next += kGranularity) {
    if (!mappings.count(next)) return kInvalidValue;
  }
  for (DevicePtr next = at; next < at + size; next += kGranularity) {
    mmap(pointer(next), kGranularity, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    const AllocationHandle handle = mappings[next].handle;
    mappings.erase(next);
    forget(handle);
  }
  return kSuccess;
}

EXPORT Result cuMemSetAccess(DevicePtr at, size_t size, const AccessDesc* access, size_t count) {
  BEGIN();
  if (count != 1 || access->location.type != kLocationDevice || access->flags != kAccessReadWrite) return kInvalidValue;
  for (DevicePtr next = at; next < at + size; next += kGranularity) {
    if (!mappings.count(next)) return kInvalidValue;
  }
  return mprotect(pointer(at), size, PROT_READ | PROT_WRITE) == 0 ? kSuccess : kInvalidValue;
}

EXPORT Result cuMemGetAllocationGranularity(size_t* granularity, const AllocationProp*, int) {
  BEGIN(false);
  *granularity = kGranularity;
  return kSuccess;
}

EXPORT Result cuMemExportToShareableHandle(void* out, AllocationHandle handle, int type, unsigned long long) {
  BEGIN();
  const auto it = allocations.find(handle);
  if (it == allocations.end() || !(it->second.handle_types & type)) return kInvalidValue;
  *static_cast<int*>(out) = dup(file);
  return kSuccess;
}

EXPORT Result cuMemcpyDtoH_v2(void* to, DevicePtr from, size_t size) {
  BEGIN();
  std::memcpy(to, pointer(from), size);
  return kSuccess;
}

EXPORT Result cuMemcpyHtoD_v2(DevicePtr to, const void* from, size_t size) {
  BEGIN();
  std::memcpy(pointer(to), from, size);
  return kSuccess;
}

EXPORT Result cuStreamQuery(StreamHandle stream) {
  BEGIN();
  return busy.count(stream) ? kNotReady : kSuccess;
}

EXPORT Result cuStreamWaitEvent(StreamHandle stream, EventHandle event, unsigned flags) {
  BEGIN();
  if (flags != 0 || !event) return kInvalidValue;
  if (busy.count(reinterpret_cast<FakeEvent*>(event)->stream)) busy.insert(stream);
  return kSuccess;
}

EXPORT Result cuStreamIsCapturing(StreamHandle stream, int* status) {
  BEGIN();
  if (!stream && !captured.empty()) return kImplicitCapture;
  *status = captured.count(stream) ? 1 : 0;
  return kSuccess;
}

EXPORT Result cuEventCreate(EventHandle* out, unsigned flags) {
  BEGIN();
  if (flags != kEventDisableTiming) return kInvalidValue;
  *out = reinterpret_cast<EventHandle>(new FakeEvent{nullptr});
  return kSuccess;
}

EXPORT Result cuEventDestroy_v2(EventHandle event) {
  if (const Result result = begin("cuEventDestroy")) return result;
  delete reinterpret_cast<FakeEvent*>(event);
  return kSuccess;
}

EXPORT Result cuEventRecord(EventHandle event, StreamHandle stream) {
  BEGIN();
  reinterpret_cast<FakeEvent*>(event)->stream = stream;
  return kSuccess;
}

EXPORT Result cuEventQuery(EventHandle event) {
  BEGIN();
  return busy.count(reinterpret_cast<FakeEvent*>(event)->stream) ? kNotReady : kSuccess;
}

EXPORT Result cuEventSynchronize(EventHandle event) {
  BEGIN();
  busy.erase(reinterpret_cast<FakeEvent*>(event)->stream);
  return kSuccess;
}

// As in CUDA 12: the newest form up to a version, by its plain name. Without the variable it knows no
// name, and the exported symbols must do.
EXPORT Result cuGetProcAddress_v2(const char* name, void** function, int version, uint64_t, int* found) {
  static const std::set<std::string> newer{"cuDevicePrimaryCtxRelease",
                                           "cuCtxPushCurrent",
                                           "cuCtxPopCurrent",
                                           "cuMemGetInfo",
                                           "cuMemcpyDtoH",
                                           "cuMemcpyHtoD",
                                           "cuEventDestroy"};
  ++seen["cuGetProcAddress"];
  *function = nullptr;
  *found = 1;
  if (!std::getenv("FAKE_PROC_ADDRESS") || version < 2000) return 500;
  const std::string symbol = std::string(name) + (newer.count(name) ? "_v2" : "");
  *function = dlsym(dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD), symbol.c_str());
  *found = *function ? 0 : 1;
  return *function ? kSuccess : 500;
}

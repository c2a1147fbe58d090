// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
//
// The part of the CUDA driver interface that an allocator needs, declared here so that neither its
// headers nor its library are needed to build. libcuda.so.1 is opened at the first use.
//
// Sources: the CUDA Driver API reference of NVIDIA; tests/vmm/drivers compares every value, layout and
// signature with a cuda.h where there is one.

#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace vmm::cuda {

using Result = int;
using Device = int;
using DevicePtr = unsigned long long;
using AllocationHandle = unsigned long long;
using Context = struct ContextTag*;
using StreamHandle = struct StreamTag*;
using EventHandle = struct EventTag*;

struct Location {
  int type;
  int id;
};

struct AllocationProp {
  int type;
  int requested_handle_types;
  Location location;
  void* win32_meta_data;
  struct {
    unsigned char compression_type;
    unsigned char gpu_direct_rdma_capable;
    unsigned short usage;
    unsigned char reserved[4];
  } alloc_flags;
};

struct AccessDesc {
  Location location;
  int flags;
};

constexpr Result kSuccess = 0;
constexpr Result kInvalidValue = 1;
constexpr Result kOutOfMemory = 2;
constexpr Result kDeinitialized = 4;
constexpr Result kEccUncorrectable = 214;
constexpr Result kNvlinkUncorrectable = 220;
constexpr Result kContained = 226;
constexpr Result kNotReady = 600;
constexpr Result kIllegalAddress = 700;
constexpr Result kLaunchTimeout = 702;
constexpr Result kContextIsDestroyed = 709;
constexpr Result kAssert = 710;
constexpr Result kHardwareStackError = 714;
constexpr Result kIllegalInstruction = 715;
constexpr Result kMisalignedAddress = 716;
constexpr Result kInvalidAddressSpace = 717;
constexpr Result kInvalidPc = 718;
constexpr Result kLaunchFailed = 719;
constexpr Result kTensorMemoryLeak = 721;
constexpr Result kNotPermitted = 800;
constexpr Result kNotSupported = 801;
constexpr Result kExternalDevice = 911;

constexpr int kLocationDevice = 1;
constexpr int kAllocationPinned = 1;
constexpr int kHandleNone = 0;
constexpr int kHandlePosixFd = 1;
constexpr int kAccessReadWrite = 3;
constexpr int kGranularityMinimum = 0;
constexpr int kCaptureNone = 0;
constexpr int kCaptureModeRelaxed = 2;
constexpr unsigned kEventDisableTiming = 2;
constexpr int kAttributeVmm = 102;
constexpr int kAttributePosixFd = 103;
constexpr int kAttributeRdmaWithVmm = 110;

// X(member, name, suffix of the exported symbol, version of CUDA in which it has this form, arguments)
#define VMM_CUDA_CALLS(X)                                                                                             \
  X(init, cuInit, "", 2000, (unsigned))                                                                               \
  X(get_error_name, cuGetErrorName, "", 6000, (Result, const char**))                                                 \
  X(device_get_count, cuDeviceGetCount, "", 2000, (int*))                                                             \
  X(device_get, cuDeviceGet, "", 2000, (Device*, int))                                                                \
  X(device_get_attribute, cuDeviceGetAttribute, "", 2000, (int*, int, Device))                                        \
  X(primary_ctx_retain, cuDevicePrimaryCtxRetain, "", 7000, (Context*, Device))                                       \
  X(primary_ctx_release, cuDevicePrimaryCtxRelease, "_v2", 11000, (Device))                                           \
  X(ctx_get_current, cuCtxGetCurrent, "", 4000, (Context*))                                                           \
  X(ctx_push_current, cuCtxPushCurrent, "_v2", 4000, (Context))                                                       \
  X(ctx_pop_current, cuCtxPopCurrent, "_v2", 4000, (Context*))                                                        \
  X(ctx_synchronize, cuCtxSynchronize, "", 2000, ())                                                                  \
  X(mem_get_info, cuMemGetInfo, "_v2", 3020, (size_t*, size_t*))                                                      \
  X(mem_address_reserve, cuMemAddressReserve, "", 10020, (DevicePtr*, size_t, size_t, DevicePtr, unsigned long long)) \
  X(mem_address_free, cuMemAddressFree, "", 10020, (DevicePtr, size_t))                                               \
  X(mem_create, cuMemCreate, "", 10020, (AllocationHandle*, size_t, const AllocationProp*, unsigned long long))       \
  X(mem_release, cuMemRelease, "", 10020, (AllocationHandle))                                                         \
  X(mem_map, cuMemMap, "", 10020, (DevicePtr, size_t, size_t, AllocationHandle, unsigned long long))                  \
  X(mem_unmap, cuMemUnmap, "", 10020, (DevicePtr, size_t))                                                            \
  X(mem_set_access, cuMemSetAccess, "", 10020, (DevicePtr, size_t, const AccessDesc*, size_t))                        \
  X(mem_get_granularity, cuMemGetAllocationGranularity, "", 10020, (size_t*, const AllocationProp*, int))             \
  X(mem_export, cuMemExportToShareableHandle, "", 10020, (void*, AllocationHandle, int, unsigned long long))          \
  X(memcpy_to_host, cuMemcpyDtoH, "_v2", 3020, (void*, DevicePtr, size_t))                                            \
  X(memcpy_to_device, cuMemcpyHtoD, "_v2", 3020, (DevicePtr, const void*, size_t))                                    \
  X(stream_query, cuStreamQuery, "", 2000, (StreamHandle))                                                            \
  X(stream_wait_event, cuStreamWaitEvent, "", 3020, (StreamHandle, EventHandle, unsigned))                            \
  X(stream_is_capturing, cuStreamIsCapturing, "", 10000, (StreamHandle, int*))                                        \
  X(exchange_capture_mode, cuThreadExchangeStreamCaptureMode, "", 10010, (int*))                                      \
  X(event_create, cuEventCreate, "", 2000, (EventHandle*, unsigned))                                                  \
  X(event_destroy, cuEventDestroy, "_v2", 4000, (EventHandle))                                                        \
  X(event_record, cuEventRecord, "", 2000, (EventHandle, StreamHandle))                                               \
  X(event_query, cuEventQuery, "", 2000, (EventHandle))                                                               \
  X(event_synchronize, cuEventSynchronize, "", 2000, (EventHandle))

struct Api {
#define VMM_DECLARE(member, name, suffix, version, arguments) Result(*member) arguments = nullptr;
  VMM_CUDA_CALLS(VMM_DECLARE)
#undef VMM_DECLARE
};

// The functions of the libcuda of this process, initialized. Null and a sentence if there is none. It is
// looked for once and never closed.
const Api* api(std::string* error);

// "CUDA_ERROR_INVALID_VALUE", or the number for a code that the library does not know.
std::string result_name(const Api& api, Result result);

}  // namespace vmm::cuda

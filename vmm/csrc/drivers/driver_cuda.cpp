// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
#include "drivers/driver_cuda.h"

#include <algorithm>
#include <iterator>

#include "drivers/cuda_scope.h"
#include "drivers/reason.h"

namespace vmm {
namespace {

// After one of these a context answers every call with the same error.
constexpr cuda::Result kLost[] = {
    cuda::kDeinitialized,      cuda::kEccUncorrectable,   cuda::kNvlinkUncorrectable, cuda::kContained,
    cuda::kIllegalAddress,     cuda::kLaunchTimeout,      cuda::kContextIsDestroyed,  cuda::kAssert,
    cuda::kHardwareStackError, cuda::kIllegalInstruction, cuda::kMisalignedAddress,   cuda::kInvalidAddressSpace,
    cuda::kInvalidPc,          cuda::kLaunchFailed,       cuda::kTensorMemoryLeak,    cuda::kExternalDevice,
};

cuda::StreamHandle stream_handle(Stream stream) { return reinterpret_cast<cuda::StreamHandle>(stream); }
cuda::EventHandle event_handle(Event event) { return reinterpret_cast<cuda::EventHandle>(event); }

bool refused_flags(cuda::Result result) {
  return result == cuda::kInvalidValue || result == cuda::kNotPermitted || result == cuda::kNotSupported;
}

}  // namespace

std::unique_ptr<CudaDriver> CudaDriver::open(const DriverOptions& options, std::string* error) {
  const cuda::Api* api = cuda::api(error);
  if (!api) return nullptr;
  int count = 0;
  if (const cuda::Result result = api->device_get_count(&count)) {
    *error = "driver:cuda needs a CUDA device: cuDeviceGetCount returned " + cuda::result_name(*api, result);
    return nullptr;
  }
  if (options.devices > count) {
    *error = "devices must be at most the " + std::to_string(count) + " that CUDA shows, but is " +
             std::to_string(options.devices);
    return nullptr;
  }
  std::unique_ptr<CudaDriver> driver(new CudaDriver(*api, options.alias));
  for (int i = 0; i < options.devices; ++i) {
    if (*error = driver->add_device(i); !error->empty()) return nullptr;
  }
  return driver;
}

std::string CudaDriver::add_device(int index) {
  auto device = std::make_unique<Device>();
  const auto attribute = [&](int which) {
    int value = 0;
    return api_.device_get_attribute(&value, which, device->number) == cuda::kSuccess && value != 0;
  };
  if (const cuda::Result result = api_.device_get(&device->number, index)) {
    return "CUDA device " + std::to_string(index) + ": cuDeviceGet returned " + cuda::result_name(api_, result);
  }
  if (!attribute(cuda::kAttributeVmm)) {
    return "CUDA device " + std::to_string(index) + " has no virtual memory management";
  }
  device->posix_fd = attribute(cuda::kAttributePosixFd);
  device->rdma = attribute(cuda::kAttributeRdmaWithVmm);
  size_t granularity = 0;
  const cuda::AllocationProp properties = page_properties(*device);
  if (const cuda::Result result = api_.mem_get_granularity(&granularity, &properties, cuda::kGranularityMinimum)) {
    return "CUDA device " + std::to_string(index) + ": cuMemGetAllocationGranularity returned " +
           cuda::result_name(api_, result);
  }
  device->granularity = granularity;
  devices_.push_back(std::move(device));
  return "";
}

CudaDriver::~CudaDriver() {
  if (dead_) return;
  for (const auto& device : devices_) {
    if (device->context && !device->lost) api_.primary_ctx_release(device->number);
  }
}

vmm_status CudaDriver::status_of(Device& device, const char* name, cuda::Result result) {
  if (result == cuda::kSuccess) [[likely]]
    return VMM_OK;
  if (result == cuda::kNotReady) return VMM_NOT_READY;
  vmm_status status = VMM_DRIVER;
  if (result == cuda::kOutOfMemory) status = VMM_OUT_OF_MEMORY;
  if (result == cuda::kInvalidValue) status = VMM_INVALID;
  if (result == cuda::kNotSupported) status = VMM_UNSUPPORTED;
  if (std::find(std::begin(kLost), std::end(kLost), result) != std::end(kLost)) {
    status = VMM_DEVICE_LOST;
    device.lost = true;
  }
  return refuse(status, std::string(name) + " returned " + cuda::result_name(api_, result));
}

vmm_status CudaDriver::admit(int device) {
  if (dead_.load(std::memory_order_relaxed)) {
    return refuse(VMM_DEAD, "the driver belongs to the parent of this process");
  }
  if (static_cast<unsigned>(device) >= devices_.size()) {
    return refuse(VMM_INVALID, "device must be from 0 to " + std::to_string(devices_.size() - 1) + ", but is " +
                                   std::to_string(device));
  }
  Device& state = *devices_[device];
  if (state.lost) return refuse(VMM_DEVICE_LOST, "CUDA device " + std::to_string(device) + " is lost");
  if (state.context) return VMM_OK;
  return status_of(state, "cuDevicePrimaryCtxRetain", api_.primary_ctx_retain(&state.context, state.number));
}

template <class Call>
vmm_status CudaDriver::run(int device, const char* name, const Call& call) {
  if (const vmm_status status = admit(device)) return status;
  Device& state = *devices_[device];
  const cuda::Scope scope(api_, state.context);
  if (scope.result() != cuda::kSuccess) return status_of(state, "making the context current", scope.result());
  return status_of(state, name, call(state));
}

Capabilities CudaDriver::capabilities(int device) {
  Capabilities result;
  result.devices = static_cast<int>(devices_.size());
  result.alias = alias_;
  if (static_cast<unsigned>(device) >= devices_.size()) return result;
  const Device& state = *devices_[device];
  result.granularity = state.granularity;
  result.rdma = state.rdma;
  result.posix_fd = state.posix_fd;
  return result;
}

vmm_status CudaDriver::va_reserve(int device, uint64_t size, Address* out) {
  return run(device, "cuMemAddressReserve", [&](Device& state) {
    cuda::DevicePtr base = 0;
    const cuda::Result result = api_.mem_address_reserve(&base, size, state.granularity, 0, 0);
    if (result == cuda::kSuccess) *out = base;
    return result;
  });
}

vmm_status CudaDriver::va_free(int device, Address base, uint64_t size) {
  return run(device, "cuMemAddressFree", [&](Device&) { return api_.mem_address_free(base, size); });
}

cuda::AllocationProp CudaDriver::page_properties(const Device& device) const {
  cuda::AllocationProp properties{};
  properties.type = cuda::kAllocationPinned;
  properties.requested_handle_types = device.posix_fd ? cuda::kHandlePosixFd : cuda::kHandleNone;
  properties.location = {cuda::kLocationDevice, device.number};
  properties.alloc_flags.gpu_direct_rdma_capable = device.rdma;
  return properties;
}

// A device may have an attribute and the machine still refuse it (a container without the rights, no
// module for RDMA). The first page finds out; the capabilities say what is left.
cuda::Result CudaDriver::create(Device& device, uint64_t size, cuda::AllocationHandle* out) {
  while (true) {
    const cuda::AllocationProp properties = page_properties(device);
    const cuda::Result result = api_.mem_create(out, size, &properties, 0);
    device.flags_proven = device.flags_proven || result == cuda::kSuccess;
    if (device.flags_proven || !refused_flags(result) || !(device.rdma || device.posix_fd)) return result;
    (device.rdma ? device.rdma : device.posix_fd) = false;
  }
}

vmm_status CudaDriver::page_create(int device, uint64_t size, Handle* out) {
  return run(device, "cuMemCreate", [&](Device& state) {
    // Not left to the driver, whose answer would be taken for one about the flags.
    if (size == 0 || size % state.granularity != 0) return cuda::kInvalidValue;
    cuda::AllocationHandle handle = 0;
    const cuda::Result result = create(state, size, &handle);
    if (result == cuda::kSuccess) *out = handle;
    return result;
  });
}

vmm_status CudaDriver::page_release(int device, uint64_t, Handle page) {
  return run(device, "cuMemRelease", [&](Device&) { return api_.mem_release(page); });
}

vmm_status CudaDriver::map(int device, Address at, uint64_t size, Handle page) {
  return run(device, "cuMemMap", [&](Device&) { return api_.mem_map(at, size, 0, page, 0); });
}

vmm_status CudaDriver::unmap(int device, Address at, uint64_t size) {
  return run(device, "cuMemUnmap", [&](Device&) { return api_.mem_unmap(at, size); });
}

vmm_status CudaDriver::set_access(int device, Address at, uint64_t size) {
  return run(device, "cuMemSetAccess", [&](Device& state) {
    const cuda::AccessDesc access{{cuda::kLocationDevice, state.number}, cuda::kAccessReadWrite};
    return api_.mem_set_access(at, size, &access, 1);
  });
}

vmm_status CudaDriver::memory_info(int device, uint64_t* free, uint64_t* total) {
  return run(device, "cuMemGetInfo", [&](Device&) {
    size_t free_bytes = 0, total_bytes = 0;
    const cuda::Result result = api_.mem_get_info(&free_bytes, &total_bytes);
    if (result == cuda::kSuccess) *free = free_bytes, *total = total_bytes;
    return result;
  });
}

vmm_status CudaDriver::stream_query(int device, Stream stream) {
  return run(device, "cuStreamQuery", [&](Device&) { return api_.stream_query(stream_handle(stream)); });
}

vmm_status CudaDriver::stream_wait(int device, Stream stream, Event event) {
  return run(device, "cuStreamWaitEvent",
             [&](Device&) { return api_.stream_wait_event(stream_handle(stream), event_handle(event), 0); });
}

// An error means that it cannot be told, as for the default stream while another is captured: nothing
// may be queued or asked there either.
bool CudaDriver::capturing(int device, Stream stream) {
  int capture = cuda::kCaptureNone;
  const vmm_status status = run(device, "cuStreamIsCapturing",
                                [&](Device&) { return api_.stream_is_capturing(stream_handle(stream), &capture); });
  return capture != cuda::kCaptureNone || (status != VMM_OK && status != VMM_DEAD && status != VMM_DEVICE_LOST);
}

vmm_status CudaDriver::event_create(int device, Event* out) {
  return run(device, "cuEventCreate", [&](Device&) {
    cuda::EventHandle event = nullptr;
    const cuda::Result result = api_.event_create(&event, cuda::kEventDisableTiming);
    if (result == cuda::kSuccess) *out = reinterpret_cast<Event>(event);
    return result;
  });
}

vmm_status CudaDriver::event_destroy(int device, Event event) {
  return run(device, "cuEventDestroy", [&](Device&) { return api_.event_destroy(event_handle(event)); });
}

vmm_status CudaDriver::event_record(int device, Event event, Stream stream) {
  return run(device, "cuEventRecord",
             [&](Device&) { return api_.event_record(event_handle(event), stream_handle(stream)); });
}

vmm_status CudaDriver::event_query(int device, Event event) {
  return run(device, "cuEventQuery", [&](Device&) { return api_.event_query(event_handle(event)); });
}

vmm_status CudaDriver::event_sync(int device, Event event) {
  return run(device, "cuEventSynchronize", [&](Device&) { return api_.event_synchronize(event_handle(event)); });
}

vmm_status CudaDriver::device_sync(int device) {
  return run(device, "cuCtxSynchronize", [&](Device&) { return api_.ctx_synchronize(); });
}

vmm_status CudaDriver::copy_out(int device, void* to, Address from, uint64_t size) {
  if (const vmm_status status = device_sync(device)) return status;
  return run(device, "cuMemcpyDtoH", [&](Device&) { return api_.memcpy_to_host(to, from, size); });
}

vmm_status CudaDriver::copy_in(int device, Address to, const void* from, uint64_t size) {
  if (const vmm_status status = device_sync(device)) return status;
  return run(device, "cuMemcpyHtoD", [&](Device&) { return api_.memcpy_to_device(to, from, size); });
}

vmm_status CudaDriver::page_export(int device, Handle page, int* fd) {
  if (const vmm_status status = admit(device)) return status;
  if (!devices_[device]->posix_fd) {
    return refuse(VMM_UNSUPPORTED, "pages of CUDA device " + std::to_string(device) + " have no file descriptors");
  }
  return run(device, "cuMemExportToShareableHandle",
             [&](Device&) { return api_.mem_export(fd, page, cuda::kHandlePosixFd, 0); });
}

vmm_status CudaDriver::clock_set(int, uint64_t) {
  return refuse(VMM_UNSUPPORTED, "a CUDA device has no logical clock");
}

vmm_status CudaDriver::clock_kernel(int, Stream, uint64_t) {
  return refuse(VMM_UNSUPPORTED, "a CUDA device has no logical clock");
}

}  // namespace vmm

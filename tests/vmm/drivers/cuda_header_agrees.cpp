// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
//
// Compiles only if our declarations agree with those of NVIDIA. Ours come first: the real header gives
// several calls their newest names by macros, which is what is to be compared.

#include <cstddef>
#include <type_traits>

#include "drivers/cuda_api.h"
// The order matters.
#include <cuda.h>

namespace ours = vmm::cuda;

// The same way of passing: pointers for pointers, numbers of the same size for numbers.
template <class A, class B>
constexpr bool same_kind = sizeof(A) == sizeof(B) && std::is_pointer_v<A> == std::is_pointer_v<B> &&
                           (std::is_pointer_v<A> || ((std::is_integral_v<A> || std::is_enum_v<A>) &&
                                                     (std::is_integral_v<B> || std::is_enum_v<B>)));

template <class A, class B>
constexpr bool same_call = false;
template <class R, class... A, class S, class... B>
constexpr bool same_call<R (*)(A...), S (*)(B...)> = [] {
  if constexpr (sizeof...(A) != sizeof...(B)) {
    return false;
  } else {
    return same_kind<R, S> && (same_kind<A, B> && ...);
  }
}();

#define CHECK_CALL(member, name, suffix, version, arguments) \
  static_assert(same_call<decltype(ours::Api::member), decltype(&name)>, #member);
VMM_CUDA_CALLS(CHECK_CALL)

#define CHECK_VALUE(ours_name, theirs) static_assert(static_cast<int>(ours::ours_name) == static_cast<int>(theirs))
CHECK_VALUE(kSuccess, CUDA_SUCCESS);
CHECK_VALUE(kInvalidValue, CUDA_ERROR_INVALID_VALUE);
CHECK_VALUE(kOutOfMemory, CUDA_ERROR_OUT_OF_MEMORY);
CHECK_VALUE(kDeinitialized, CUDA_ERROR_DEINITIALIZED);
CHECK_VALUE(kEccUncorrectable, CUDA_ERROR_ECC_UNCORRECTABLE);
CHECK_VALUE(kNvlinkUncorrectable, CUDA_ERROR_NVLINK_UNCORRECTABLE);
CHECK_VALUE(kNotReady, CUDA_ERROR_NOT_READY);
CHECK_VALUE(kIllegalAddress, CUDA_ERROR_ILLEGAL_ADDRESS);
CHECK_VALUE(kLaunchTimeout, CUDA_ERROR_LAUNCH_TIMEOUT);
CHECK_VALUE(kContextIsDestroyed, CUDA_ERROR_CONTEXT_IS_DESTROYED);
CHECK_VALUE(kAssert, CUDA_ERROR_ASSERT);
CHECK_VALUE(kHardwareStackError, CUDA_ERROR_HARDWARE_STACK_ERROR);
CHECK_VALUE(kIllegalInstruction, CUDA_ERROR_ILLEGAL_INSTRUCTION);
CHECK_VALUE(kMisalignedAddress, CUDA_ERROR_MISALIGNED_ADDRESS);
CHECK_VALUE(kInvalidAddressSpace, CUDA_ERROR_INVALID_ADDRESS_SPACE);
CHECK_VALUE(kInvalidPc, CUDA_ERROR_INVALID_PC);
CHECK_VALUE(kLaunchFailed, CUDA_ERROR_LAUNCH_FAILED);
CHECK_VALUE(kNotPermitted, CUDA_ERROR_NOT_PERMITTED);
CHECK_VALUE(kNotSupported, CUDA_ERROR_NOT_SUPPORTED);
CHECK_VALUE(kExternalDevice, CUDA_ERROR_EXTERNAL_DEVICE);
#if CUDA_VERSION >= 13000  // younger than the rest
CHECK_VALUE(kContained, CUDA_ERROR_CONTAINED);
CHECK_VALUE(kTensorMemoryLeak, CUDA_ERROR_TENSOR_MEMORY_LEAK);
#endif
CHECK_VALUE(kLocationDevice, CU_MEM_LOCATION_TYPE_DEVICE);
CHECK_VALUE(kAllocationPinned, CU_MEM_ALLOCATION_TYPE_PINNED);
CHECK_VALUE(kHandleNone, CU_MEM_HANDLE_TYPE_NONE);
CHECK_VALUE(kHandlePosixFd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
CHECK_VALUE(kAccessReadWrite, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
CHECK_VALUE(kGranularityMinimum, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
CHECK_VALUE(kCaptureNone, CU_STREAM_CAPTURE_STATUS_NONE);
CHECK_VALUE(kCaptureModeRelaxed, CU_STREAM_CAPTURE_MODE_RELAXED);
CHECK_VALUE(kEventDisableTiming, CU_EVENT_DISABLE_TIMING);
CHECK_VALUE(kAttributeVmm, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED);
CHECK_VALUE(kAttributePosixFd, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED);
CHECK_VALUE(kAttributeRdmaWithVmm, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED);

#define CHECK_FIELD(type, field, theirs, their_field)                          \
  static_assert(offsetof(ours::type, field) == offsetof(theirs, their_field)); \
  static_assert(sizeof(ours::type::field) == sizeof(theirs::their_field))
static_assert(sizeof(ours::Location) == sizeof(CUmemLocation));
CHECK_FIELD(Location, type, CUmemLocation, type);
CHECK_FIELD(Location, id, CUmemLocation, id);
static_assert(sizeof(ours::AllocationProp) == sizeof(CUmemAllocationProp));
CHECK_FIELD(AllocationProp, type, CUmemAllocationProp, type);
CHECK_FIELD(AllocationProp, requested_handle_types, CUmemAllocationProp, requestedHandleTypes);
CHECK_FIELD(AllocationProp, location, CUmemAllocationProp, location);
CHECK_FIELD(AllocationProp, win32_meta_data, CUmemAllocationProp, win32HandleMetaData);
CHECK_FIELD(AllocationProp, alloc_flags, CUmemAllocationProp, allocFlags);
static_assert(offsetof(ours::AllocationProp, alloc_flags.gpu_direct_rdma_capable) ==
              offsetof(CUmemAllocationProp, allocFlags.gpuDirectRDMACapable));
static_assert(sizeof(ours::AccessDesc) == sizeof(CUmemAccessDesc));
CHECK_FIELD(AccessDesc, location, CUmemAccessDesc, location);
CHECK_FIELD(AccessDesc, flags, CUmemAccessDesc, flags);

int main() { return 0; }

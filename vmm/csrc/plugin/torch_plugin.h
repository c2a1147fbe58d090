// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
//
// The functions that torch's CUDAPluggableAllocator asks for. No header of torch or CUDA is needed: a
// stream is a pointer to a type that nobody looks into, and a pool of torch is a pair of numbers.
//
// Functions that torch calls throw std::runtime_error with our sentence where torch expects success:
// it does not check for null, and makes a Python RuntimeError of any exception.

#pragma once

#include <sys/types.h>

#include <functional>
#include <utility>

#include "vmm.h"

struct CUstream_st;
using cudaStream_t = CUstream_st*;

namespace vmm {
using MempoolId = std::pair<unsigned long long, unsigned long long>;
using StreamFilter = std::function<bool(cudaStream_t)>;
}  // namespace vmm

extern "C" {

// The core behind the functions below. Without one the first request opens it, from "driver:cuda" and
// the environment variable VMM_CONF. Null takes it away, which is for tests and failed starts.
VMM_API vmm_status vmm_torch_install(vmm_allocator* core);

// The pool that requests of the calling thread for a device come from. Returns the old one.
VMM_API uint32_t vmm_torch_set_pool(int device, uint32_t pool);

VMM_API void* vmm_torch_malloc(ssize_t size, int device, cudaStream_t stream);
VMM_API void vmm_torch_free(void* pointer, ssize_t size, int device, cudaStream_t stream);

VMM_API void vmm_torch_init(int device_count);
VMM_API void vmm_torch_reset();  // torch.cuda.empty_cache
VMM_API void vmm_torch_memory_fraction(double fraction, int device);
VMM_API void* vmm_torch_base_alloc(void* pointer, size_t* size);
VMM_API void vmm_torch_record_stream(void* pointer, cudaStream_t stream);

// Between begin and end, requests whose stream passes the filter come from the pool of this name. Each
// begin is matched by a release; the pool goes with the last one.
VMM_API void vmm_torch_begin_allocate_to_pool(int device, vmm::MempoolId id, vmm::StreamFilter filter);
VMM_API void vmm_torch_end_allocate_to_pool(int device, vmm::MempoolId id);
VMM_API void vmm_torch_release_pool(int device, vmm::MempoolId id);

// A use of a pool without requests, also matched by a release; for the subclass.
VMM_API void vmm_torch_hold_pool(int device, vmm::MempoolId id);

// The number of the pool of this name, and its uses; 0 if there is none.
VMM_API uint32_t vmm_torch_pool_number(int device, vmm::MempoolId id);
VMM_API int vmm_torch_pool_uses(int device, vmm::MempoolId id);

// For torch.cuda.MemPool, which asks for segments, and tries again later when it gets null.
VMM_API vmm_status vmm_mempool_install(vmm_allocator* core);
VMM_API void* vmm_mempool_malloc(ssize_t size, int device, cudaStream_t stream);
VMM_API void vmm_mempool_free(void* pointer, ssize_t size, int device, cudaStream_t stream);

}  // extern "C"

// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
//
// The two functions behind torch.cuda.MemPool; see torch_plugin.h. Null tells torch to free what it
// caches and to try again.

#include <atomic>

#include "plugin/torch_plugin.h"

namespace {

std::atomic<vmm_allocator*> core{nullptr};

}  // namespace

extern "C" {

vmm_status vmm_mempool_install(vmm_allocator* allocator) {
  vmm_allocator* nobody = nullptr;
  if (allocator != nullptr) return core.compare_exchange_strong(nobody, allocator) ? VMM_OK : VMM_INVALID;
  core.store(nullptr);
  return VMM_OK;
}

void* vmm_mempool_malloc(ssize_t size, int device, cudaStream_t stream) {
  const vmm_request request = {static_cast<uint64_t>(size), reinterpret_cast<uint64_t>(stream), device, 0, 0, 0};
  void* pointer = nullptr;
  return vmm_allocate(core.load(std::memory_order_acquire), &request, &pointer) == VMM_OK ? pointer : nullptr;
}

void vmm_mempool_free(void* pointer, ssize_t, int device, cudaStream_t) {
  if (pointer != nullptr) vmm_deallocate(core.load(std::memory_order_acquire), device, pointer);
}

}  // extern "C"

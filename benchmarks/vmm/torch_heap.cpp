// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
//
// The CPU allocator of torch behind two plain functions, for hot_path.cpp.

#include <c10/core/CPUAllocator.h>

extern "C" {

void* heap_allocate(size_t size) {
  static c10::Allocator* allocator = c10::GetCPUAllocator();
  return allocator->raw_allocate(size);
}

void heap_release(void* pointer) {
  static c10::Allocator* allocator = c10::GetCPUAllocator();
  allocator->raw_deallocate(pointer);
}

}  // extern "C"

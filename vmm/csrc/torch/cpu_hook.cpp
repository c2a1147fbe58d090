// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
//
// See cpu_hook.h.
//
// A deleter gets nothing but the pointer, so it asks every core that was ever installed whether the
// pointer is one of its own; usually the first answers. What none knows came from the allocator before.
//
// In a child of fork() the parent's cores are dead. The child puts the allocator from before back: its
// new tensors are ordinary. Tensors it inherited are never freed there.

#include "torch/cpu_hook.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>
#include <pthread.h>
#include <torch/headeronly/version.h>

#include <atomic>
#include <string>

#include "torch/fork_memory.h"

namespace {

constexpr uint8_t kPriority = 100;  // above every allocator that torch registers itself

struct Source {
  const vmm_table* table;
  vmm_allocator* core;
  uint64_t min_size;
  Source* older;
  std::atomic<bool> retired{false}, inherited{false};
};

std::atomic<Source*> newest{nullptr};   // a list that only grows
std::atomic<Source*> current{nullptr};  // null: nothing is installed
std::atomic<c10::Allocator*> before{nullptr};

thread_local uint32_t pool_of_thread = 0;
thread_local const char* refusal = "";

void release(void* pointer) {
  if (pointer == nullptr) return;
  // Before the memory is free: another thread may get and report the same address at once.
  c10::profiledCPUMemoryReporter().Delete(pointer);
  bool inherited = false;
  for (Source* source = newest.load(std::memory_order_acquire); source != nullptr; source = source->older) {
    if (source->inherited.load(std::memory_order_relaxed)) {
      inherited = true;
      continue;
    }
    if (source->table->deallocate(source->core, 0, pointer) == VMM_INVALID) continue;
    if (source->retired.load(std::memory_order_relaxed)) {
      uint64_t bytes = 0;
      source->table->trim(source->core, 0, UINT64_MAX, &bytes);
    }
    return;
  }
  if (!inherited) before.load(std::memory_order_relaxed)->raw_deallocate(pointer);
}

[[noreturn]] void refuse(const Source& source, vmm_status status, size_t size) {
  const std::string why = source.table->last_error();
  c10::profiledCPUMemoryReporter().OutOfMemory(size);
  TORCH_CHECK_WITH(OutOfMemoryError, status != VMM_OUT_OF_MEMORY, why);
  TORCH_CHECK(false, why);
}

class CpuAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t size) override {
    const c10::Device cpu(c10::DeviceType::CPU);
    Source* source = current.load(std::memory_order_acquire);
    if (source == nullptr || size < source->min_size) return before.load(std::memory_order_relaxed)->allocate(size);
    if (size == 0) return {nullptr, nullptr, &release, cpu};
    const vmm_request request = {size, 0, 0, pool_of_thread, 0, 0};
    void* data = nullptr;
    const vmm_status status = source->table->allocate(source->core, &request, &data);
    if (status != VMM_OK) refuse(*source, status, size);
    c10::profiledCPUMemoryReporter().New(data, size);
    return {data, data, &release, cpu};
  }

  c10::DeleterFnPtr raw_deleter() const override { return &release; }

  void copy_data(void* to, const void* from, size_t size) const override { default_copy_data(to, from, size); }
};

CpuAllocator& allocator() {
  static CpuAllocator* ours = new CpuAllocator;  // leaked on purpose: storages keep a pointer to it
  return *ours;
}

// Runs in the child before fork() returns, with one thread.
void leave_parent() {
  if (newest.load() != nullptr) vmm::keep_writes_from_parent();
  for (Source* source = newest.load(); source != nullptr; source = source->older) source->inherited.store(true);
  if (current.exchange(nullptr) != nullptr) c10::SetCPUAllocator(before.load(), kPriority);
}

vmm_status no(const char* why) {
  refusal = why;
  return VMM_INVALID;
}

}  // namespace

extern "C" {

const char* vmm_cpu_hook_torch(void) { return TORCH_VERSION; }

const char* vmm_cpu_hook_error(void) { return refusal; }

int vmm_cpu_hook_installed(void) { return current.load() != nullptr; }

uint32_t vmm_cpu_hook_set_pool(uint32_t pool) {
  const uint32_t old = pool_of_thread;
  pool_of_thread = pool;
  return old;
}

vmm_status vmm_cpu_hook_install(const vmm_table* table, vmm_allocator* core, uint64_t min_size) {
  if (table == nullptr || core == nullptr) return no("table, core: null");
  if (table->version != VMM_ABI_VERSION || table->size < sizeof(vmm_table)) {
    return no("table: it is of another version than this hook");
  }
  if (current.load() != nullptr) return no("core: another one is installed");
  static const int registered = pthread_atfork(nullptr, nullptr, leave_parent);
  if (registered != 0) return no("core: the process has no memory to register what a fork must do");
  auto* source = new Source{table, core, min_size, newest.load()};  // leaked on purpose: deleters read it
  before.store(c10::GetCPUAllocator());
  newest.store(source, std::memory_order_release);
  current.store(source, std::memory_order_release);
  c10::SetCPUAllocator(&allocator(), kPriority);
  return VMM_OK;
}

vmm_status vmm_cpu_hook_uninstall(void) {
  Source* source = current.exchange(nullptr);
  if (source == nullptr) return no("core: none is installed");
  c10::SetCPUAllocator(before.load(), kPriority);
  source->retired.store(true);
  uint64_t bytes = 0;
  source->table->trim(source->core, 0, UINT64_MAX, &bytes);
  return VMM_OK;
}

}  // extern "C"

// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
//
// The C interface over the devices; fork safety; the table for other libraries.

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "core/device.h"
#include "core/replay.h"
#include "core/sentences.h"
#include "core/tags.h"

struct vmm_allocator {
  vmm::Config config;
  std::unique_ptr<vmm::Driver> driver;
  vmm::Recorder recorder;
  std::vector<std::unique_ptr<vmm::Device>> devices;
  std::mutex callbacks_mutex;
  std::vector<std::pair<vmm_oom_callback, void*>> callbacks;
  std::atomic<bool> dead{false};
};

namespace {

using vmm::fail;

std::atomic<vmm_stack_hook> stack_hook{nullptr};

// Every allocator that is open. The child of a fork only walks it; the lock is held across fork().
struct Registry {
  std::mutex mutex;
  std::vector<vmm_allocator*> open;
};
Registry& registry() {
  static Registry* all = [] {
    auto* made = new Registry;  // leaked on purpose: no driver call in static destructors
    auto lock = [] {
      registry().mutex.lock();
      vmm::lock_tags();
    };
    auto unlock = [] {
      vmm::unlock_tags();
      registry().mutex.unlock();
    };
    auto child = [] {
      for (vmm_allocator* allocator : registry().open) {
        allocator->dead.store(true);
        allocator->driver->abandon();
      }
      vmm::unlock_tags();
      registry().mutex.unlock();
    };
    pthread_atfork(lock, unlock, child);
    return made;
  }();
  return *all;
}

__attribute__((noinline, cold)) vmm_status no_device(vmm_allocator* allocator, int device) {
  if (allocator == nullptr) return fail(VMM_INVALID, "allocator: null");
  if (allocator->dead.load(std::memory_order_relaxed)) {
    return fail(VMM_DEAD, "allocator: it belongs to the process that forked this one, or was closed");
  }
  return fail(VMM_INVALID, "device: there are " + std::to_string(allocator->devices.size()) + " devices, but " +
                               std::to_string(device) + " was asked for");
}

// Null if the call must be refused; no_device says why.
inline vmm::Device* device_of(vmm_allocator* allocator, int device) {
  if (allocator == nullptr || allocator->dead.load(std::memory_order_relaxed) || device < 0 ||
      static_cast<size_t>(device) >= allocator->devices.size()) {
    return nullptr;
  }
  return allocator->devices[static_cast<size_t>(device)].get();
}

// What was thrown inside, as a status. Call in a handler.
__attribute__((noinline, cold)) vmm_status thrown() {
  try {
    throw;
  } catch (const vmm::TooManyStreams& error) {
    return fail(VMM_INVALID, error.what());
  } catch (const std::exception&) {  // bad_alloc, or the length_error of an absurd count
    return fail(VMM_OUT_OF_MEMORY, "the host has no memory for the tables of the allocator");
  }
}

// Runs `body(device)`; nothing that is thrown inside leaves the library.
template <class F>
vmm_status on_device(vmm_allocator* allocator, int device, F body) {
  vmm::Device* target = device_of(allocator, device);
  if (target == nullptr) return no_device(allocator, device);
  try {
    return body(target);
  } catch (...) {
    return thrown();
  }
}

template <class T, class F>
vmm_status list(vmm_allocator* allocator, int device, T* out, size_t capacity, size_t* count, F body) {
  if (count == nullptr || (out == nullptr && capacity != 0)) return fail(VMM_INVALID, "out, count: null");
  return on_device(allocator, device, [&](vmm::Device* target) {
    *count = body(target, out, capacity);
    return VMM_OK;
  });
}

// Asks the callbacks for memory and tries again, a bounded number of times.
vmm_status ask_for_memory(vmm_allocator* allocator, vmm::Device* device, const vmm_request& request, void** out) {
  vmm_status status = VMM_OUT_OF_MEMORY;
  std::string sentence = vmm::last_error();
  for (uint64_t round = 0; status == VMM_OUT_OF_MEMORY && round < allocator->config.oom_rounds; ++round) {
    // Without any lock: a callback may free, allocate, or run Python.
    std::vector<std::pair<vmm_oom_callback, void*>> callbacks;
    {
      std::lock_guard lock(allocator->callbacks_mutex);
      callbacks = allocator->callbacks;
    }
    bool freed = false;
    for (const auto& [callback, user] : callbacks) {
      freed = callback(user, request.device, request.size) != 0 || freed;
    }
    if (!freed) break;
    device->count_retry();
    status = device->allocate(request, out);
    if (status == VMM_OUT_OF_MEMORY) sentence = vmm::last_error();
  }
  if (status != VMM_OUT_OF_MEMORY) return status;
  device->count_oom(request);
  return fail(status, sentence);  // a callback may have failed at something else meanwhile
}

}  // namespace

extern "C" {

vmm_status vmm_create(const char* config, vmm_allocator** out) {
  if (out == nullptr) return fail(VMM_INVALID, "out: null");
  *out = nullptr;
  try {
    auto made = std::make_unique<vmm_allocator>();
    std::string error;
    if (!vmm::parse_config(config == nullptr ? "" : config, &made->config, &error)) return fail(VMM_INVALID, error);
    made->driver = vmm::open_driver(made->config.driver, &error);
    if (!made->driver) return fail(VMM_UNSUPPORTED, error);
    vmm::Capabilities caps = made->driver->capabilities(0);
    if (made->config.page % caps.granularity != 0) {
      return fail(VMM_INVALID, "config: page must be a multiple of the granularity of the driver, " +
                                   std::to_string(caps.granularity) + ", but is " + std::to_string(made->config.page));
    }
    for (int id = 0; id < std::max(caps.devices, 1); ++id) {
      made->devices.push_back(std::make_unique<vmm::Device>(id, &made->config, made->driver.get(), &made->recorder));
    }
    std::lock_guard lock(registry().mutex);
    registry().open.push_back(made.get());
    *out = made.release();
    return VMM_OK;
  } catch (const std::bad_alloc&) {
    return fail(VMM_OUT_OF_MEMORY, "the host has no memory for the tables of the allocator");
  }
}

void vmm_destroy(vmm_allocator* allocator) {
  if (allocator == nullptr) return;
  {
    std::lock_guard lock(registry().mutex);
    std::erase(registry().open, allocator);
  }
  // A child leaks its copy: nothing in it may touch the parent's device.
  if (allocator->dead.exchange(true)) return;
  for (const auto& device : allocator->devices) device->close();
  delete allocator;
}

const char* vmm_last_error(void) { return vmm::last_error(); }

vmm_status vmm_allocate(vmm_allocator* allocator, const vmm_request* request, void** out) {
  if (request == nullptr || out == nullptr) return fail(VMM_INVALID, "request, out: null");
  *out = nullptr;
  vmm::Device* device = device_of(allocator, request->device);
  if (device == nullptr) return no_device(allocator, request->device);
  try {
    if (!allocator->recorder.on()) {
      vmm_status status = device->allocate(*request, out);
      return status == VMM_OUT_OF_MEMORY ? ask_for_memory(allocator, device, *request, out) : status;
    }
    vmm_request filled = *request;
    if (allocator->recorder.with_stacks() && filled.stack == 0) {
      vmm_stack_hook hook = stack_hook.load(std::memory_order_relaxed);
      if (hook != nullptr) filled.stack = hook(filled.size);
    }
    vmm_status status = device->allocate(filled, out);
    return status == VMM_OUT_OF_MEMORY ? ask_for_memory(allocator, device, filled, out) : status;
  } catch (...) {
    return thrown();
  }
}

vmm_status vmm_deallocate(vmm_allocator* allocator, int device, void* pointer) {
  return on_device(allocator, device, [&](vmm::Device* target) { return target->deallocate(pointer); });
}

vmm_status vmm_record_stream(vmm_allocator* allocator, int device, void* pointer, uint64_t stream) {
  return on_device(allocator, device, [&](vmm::Device* target) { return target->record_stream(pointer, stream); });
}

vmm_status vmm_block_of(vmm_allocator* allocator, int device, const void* address, void** base, uint64_t* size,
                        uint64_t* requested) {
  return on_device(allocator, device, [&](vmm::Device* target) {
    return target->block_of(reinterpret_cast<vmm::Address>(address), base, size, requested);
  });
}

uint32_t vmm_set_thread_tag(uint32_t tag) { return vmm::set_thread_tag(tag); }

void vmm_set_stack_hook(vmm_stack_hook hook) { stack_hook.store(hook, std::memory_order_relaxed); }

vmm_status vmm_pool_create(vmm_allocator* allocator, int device, const char* name, uint64_t cap, int shared_pages,
                           uint32_t* pool) {
  if (pool == nullptr) return fail(VMM_INVALID, "pool: null");
  return on_device(allocator, device,
                   [&](vmm::Device* target) { return target->pool_create(name, cap, shared_pages != 0, pool); });
}

vmm_status vmm_pool_release(vmm_allocator* allocator, int device, uint32_t pool) {
  return on_device(allocator, device, [&](vmm::Device* target) { return target->pool_release(pool); });
}

vmm_status vmm_pool_sleep(vmm_allocator* allocator, int device, uint32_t pool, int keep, uint64_t* released_bytes) {
  uint64_t released = 0;
  return on_device(allocator, device, [&](vmm::Device* target) {
    return target->pool_sleep(pool, keep != 0, released_bytes == nullptr ? &released : released_bytes);
  });
}

vmm_status vmm_pool_wake(vmm_allocator* allocator, int device, uint32_t pool) {
  return on_device(allocator, device, [&](vmm::Device* target) { return target->pool_wake(pool); });
}

vmm_status vmm_pin(vmm_allocator* allocator, int device, const void* pointer, uint64_t size, vmm_pin_reason reason) {
  return on_device(allocator, device, [&](vmm::Device* target) {
    return target->pin(reinterpret_cast<vmm::Address>(pointer), size, reason, 1);
  });
}

vmm_status vmm_unpin(vmm_allocator* allocator, int device, const void* pointer, uint64_t size, vmm_pin_reason reason) {
  return on_device(allocator, device, [&](vmm::Device* target) {
    return target->pin(reinterpret_cast<vmm::Address>(pointer), size, reason, -1);
  });
}

vmm_status vmm_compact(vmm_allocator* allocator, int device, uint64_t target_bytes, int release, int sync,
                       uint64_t* moved_bytes) {
  uint64_t moved = 0;
  return on_device(allocator, device, [&](vmm::Device* target) {
    return target->compact(target_bytes, release != 0, sync != 0, moved_bytes == nullptr ? &moved : moved_bytes);
  });
}

vmm_status vmm_trim(vmm_allocator* allocator, int device, uint64_t bytes, uint64_t* released_bytes) {
  uint64_t released = 0;
  return on_device(allocator, device, [&](vmm::Device* target) {
    return target->trim(bytes, released_bytes == nullptr ? &released : released_bytes);
  });
}

vmm_status vmm_mark_step(vmm_allocator* allocator, int device) {
  return on_device(allocator, device, [&](vmm::Device* target) { return target->mark_step(); });
}

vmm_status vmm_set_limit(vmm_allocator* allocator, int device, uint64_t bytes) {
  return on_device(allocator, device, [&](vmm::Device* target) { return target->set_limit(bytes); });
}

vmm_status vmm_plan(vmm_allocator* allocator, int device, const uint64_t* sizes, size_t count, uint64_t stream,
                    vmm_fit* answer) {
  if (answer == nullptr || (sizes == nullptr && count != 0)) return fail(VMM_INVALID, "sizes, answer: null");
  return on_device(allocator, device, [&](vmm::Device* target) { return target->plan(sizes, count, stream, answer); });
}

vmm_status vmm_prefetch(vmm_allocator* allocator, int device, const uint64_t* sizes, size_t count, uint64_t stream) {
  if (sizes == nullptr && count != 0) return fail(VMM_INVALID, "sizes: null");
  return on_device(allocator, device, [&](vmm::Device* target) { return target->prefetch(sizes, count, stream); });
}

vmm_status vmm_on_oom(vmm_allocator* allocator, vmm_oom_callback callback, void* user) {
  if (callback == nullptr) return fail(VMM_INVALID, "callback: null");
  return on_device(allocator, 0, [&](vmm::Device*) {
    std::lock_guard lock(allocator->callbacks_mutex);
    allocator->callbacks.emplace_back(callback, user);
    return VMM_OK;
  });
}

vmm_status vmm_remove_on_oom(vmm_allocator* allocator, vmm_oom_callback callback, void* user) {
  return on_device(allocator, 0, [&](vmm::Device*) {
    std::lock_guard lock(allocator->callbacks_mutex);
    auto& all = allocator->callbacks;
    auto found = std::find(all.begin(), all.end(), std::pair(callback, user));
    if (found == all.end()) return fail(VMM_INVALID, "callback: it is not registered");
    all.erase(found);
    return VMM_OK;
  });
}

size_t vmm_stat_count(void) { return vmm::stat_names().size(); }

const char* vmm_stat_name(size_t index) {
  return index < vmm::stat_names().size() ? vmm::stat_names()[index].c_str() : nullptr;
}

vmm_status vmm_stats(vmm_allocator* allocator, int device, uint64_t* out, size_t count) {
  if (out == nullptr && count != 0) return fail(VMM_INVALID, "out: null");
  return on_device(allocator, device, [&](vmm::Device* target) { return target->stats(out, count); });
}

vmm_status vmm_reset_peak(vmm_allocator* allocator, int device) {
  return on_device(allocator, device, [&](vmm::Device* target) {
    target->reset_peak();
    return VMM_OK;
  });
}

vmm_status vmm_blocks(vmm_allocator* allocator, int device, vmm_block_info* out, size_t capacity, size_t* count) {
  return list(allocator, device, out, capacity, count,
              [](auto* target, auto* rows, size_t n) { return target->blocks(rows, n); });
}

vmm_status vmm_slots(vmm_allocator* allocator, int device, vmm_slot_info* out, size_t capacity, size_t* count) {
  return list(allocator, device, out, capacity, count,
              [](auto* target, auto* rows, size_t n) { return target->slots(rows, n); });
}

vmm_status vmm_arenas(vmm_allocator* allocator, int device, vmm_arena_info* out, size_t capacity, size_t* count) {
  return list(allocator, device, out, capacity, count,
              [](auto* target, auto* rows, size_t n) { return target->arenas(rows, n); });
}

vmm_status vmm_streams(vmm_allocator* allocator, uint64_t* out, size_t capacity, size_t* count) {
  return list(allocator, 0, out, capacity, count,
              [&](auto*, auto* rows, size_t n) { return allocator->recorder.streams(rows, n); });
}

vmm_status vmm_check(vmm_allocator* allocator, int device) {
  return on_device(allocator, device, [&](vmm::Device* target) { return target->check(); });
}

vmm_status vmm_record_start(vmm_allocator* allocator, uint64_t capacity, uint64_t min_size, int with_stacks) {
  return on_device(allocator, 0,
                   [&](vmm::Device*) { return allocator->recorder.start(capacity, min_size, with_stacks != 0); });
}

vmm_status vmm_record_stop(vmm_allocator* allocator) {
  return on_device(allocator, 0, [&](vmm::Device*) {
    allocator->recorder.stop();
    return VMM_OK;
  });
}

vmm_status vmm_record_read(vmm_allocator* allocator, vmm_event* out, size_t capacity, size_t* count, uint64_t* lost) {
  if (count == nullptr || (out == nullptr && capacity != 0)) return fail(VMM_INVALID, "out, count: null");
  return on_device(allocator, 0, [&](vmm::Device*) {
    *count = allocator->recorder.read(out, capacity, lost);
    return VMM_OK;
  });
}

vmm_status vmm_note(vmm_allocator* allocator, int device, uint32_t tag) {
  return on_device(allocator, device, [&](vmm::Device* target) {
    target->note(tag);
    return VMM_OK;
  });
}

uint32_t vmm_intern_tag(const char* text) { return vmm::intern_tag(text); }

const char* vmm_tag_text(uint32_t tag) { return vmm::tag_text(tag); }

vmm_status vmm_replay(vmm_allocator* allocator, const vmm_replay_event* events, size_t count, size_t ids,
                      int stop_at_oom, uint64_t* addresses, vmm_replay_result* result) {
  if (result == nullptr || (events == nullptr && count != 0)) return fail(VMM_INVALID, "events, result: null");
  return on_device(allocator, 0, [&](vmm::Device* target) {
    return vmm::replay(target, events, count, ids, stop_at_oom != 0, addresses, result);
  });
}

vmm_status vmm_clock_set(vmm_allocator* allocator, int device, uint64_t t_ns) {
  return on_device(allocator, device, [&](vmm::Device* target) { return target->clock_set(t_ns); });
}

vmm_status vmm_clock_kernel(vmm_allocator* allocator, int device, uint64_t stream, uint64_t duration_ns) {
  return on_device(allocator, device, [&](vmm::Device* target) { return target->clock_kernel(stream, duration_ns); });
}

const vmm_table* vmm_get_table(uint32_t version) {
  static const vmm_table table = {
      VMM_ABI_VERSION,   sizeof(vmm_table), vmm_create, vmm_destroy,   vmm_last_error, vmm_allocate,  vmm_deallocate,
      vmm_record_stream, vmm_block_of,      vmm_trim,   vmm_mark_step, vmm_stat_count, vmm_stat_name, vmm_stats,
  };
  if (version != VMM_ABI_VERSION) {
    fail(VMM_UNSUPPORTED, "version: this library speaks version 1, but " + std::to_string(version) + " was asked for");
    return nullptr;
  }
  return &table;
}

}  // extern "C"

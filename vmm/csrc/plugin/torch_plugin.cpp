// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
//
// See torch_plugin.h.

#include "plugin/torch_plugin.h"

#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "plugin/private_pools.h"

namespace vmm {
namespace {

constexpr int kMostDevices = 64;

struct Plugin {
  std::atomic<vmm_allocator*> core{nullptr};
  PrivatePools pools;

  std::mutex mutex;                   // of what follows
  std::map<int, uint64_t> all_bytes;  // of a device, before any fraction was set
  std::set<std::pair<int, void*>> exported;
};

Plugin& plugin() {
  static Plugin* one = new Plugin;  // leaked on purpose: tensors die after static destructors
  return *one;
}

// By device; made when a thread chooses a pool. Libraries opened late get little thread-local memory.
thread_local std::unique_ptr<std::array<uint32_t, kMostDevices>> pools_of_thread;

[[noreturn]] void refuse() { throw std::runtime_error(vmm_last_error()); }

vmm_allocator* opened() {
  Plugin& state = plugin();
  if (vmm_allocator* core = state.core.load(std::memory_order_acquire)) return core;
  std::lock_guard lock(state.mutex);
  if (vmm_allocator* core = state.core.load()) return core;
  const char* more = std::getenv("VMM_CONF");
  vmm_allocator* core = nullptr;
  const std::string config = std::string("driver:cuda") + (more != nullptr ? std::string(",") + more : "");
  if (vmm_create(config.c_str(), &core) != VMM_OK) refuse();
  state.core.store(core, std::memory_order_release);
  return core;
}

bool is_device(vmm_allocator* core, int device) { return vmm_stats(core, device, nullptr, 0) == VMM_OK; }

// The device on which an address is live memory; torch does not say. -1: none.
int device_of(vmm_allocator* core, const void* pointer, void** base, uint64_t* size) {
  uint64_t requested = 0;
  for (int device = 0; is_device(core, device); ++device) {
    if (vmm_block_of(core, device, pointer, base, size, &requested) == VMM_OK) return device;
  }
  return -1;
}

uint64_t stat(vmm_allocator* core, int device, const char* name) {
  std::vector<uint64_t> row(vmm_stat_count());
  if (vmm_stats(core, device, row.data(), row.size()) != VMM_OK) refuse();
  for (size_t i = 0; i < row.size(); ++i) {
    if (std::strcmp(vmm_stat_name(i), name) == 0) return row[i];
  }
  return 0;
}

uint32_t thread_pool(int device) {
  if (pools_of_thread == nullptr || device < 0 || device >= kMostDevices) return 0;
  return (*pools_of_thread)[static_cast<size_t>(device)];
}

vmm_request request_for(ssize_t size, int device, cudaStream_t stream, uint32_t pool) {
  return {static_cast<uint64_t>(size), reinterpret_cast<uint64_t>(stream), device, pool, 0, 0};
}

}  // namespace
}  // namespace vmm

extern "C" {

vmm_status vmm_torch_install(vmm_allocator* core) {
  vmm::Plugin& state = vmm::plugin();
  vmm_allocator* nobody = nullptr;
  if (core != nullptr) return state.core.compare_exchange_strong(nobody, core) ? VMM_OK : VMM_INVALID;
  state.core.store(nullptr);
  state.pools.forget();
  std::lock_guard lock(state.mutex);
  state.all_bytes.clear();
  state.exported.clear();
  return VMM_OK;
}

uint32_t vmm_torch_set_pool(int device, uint32_t pool) {
  if (device < 0 || device >= vmm::kMostDevices) return 0;
  auto& pools = vmm::pools_of_thread;
  if (pools == nullptr) pools = std::make_unique<std::array<uint32_t, vmm::kMostDevices>>();
  return std::exchange((*pools)[static_cast<size_t>(device)], pool);
}

void* vmm_torch_malloc(ssize_t size, int device, cudaStream_t stream) {
  vmm_allocator* core = vmm::opened();
  vmm::PrivatePools& pools = vmm::plugin().pools;
  uint32_t pool = vmm::thread_pool(device);
  const bool routed = pools.active();
  if (routed) pool = pools.pool_for(device, stream, pool);
  const vmm_request request = vmm::request_for(size, device, stream, pool);
  void* pointer = nullptr;
  if (vmm_allocate(core, &request, &pointer) != VMM_OK) vmm::refuse();
  if (routed && pool != 0 && pointer != nullptr) pools.keep(core, device, pool, pointer, request.size);
  return pointer;
}

// Called from destructors, where nothing may be thrown. Torch keeps a table of its own of what is live.
void vmm_torch_free(void* pointer, ssize_t, int device, cudaStream_t) {
  if (pointer != nullptr) vmm_deallocate(vmm::opened(), device, pointer);
}

void vmm_torch_init(int) {}

void vmm_torch_reset() {
  vmm_allocator* core = vmm::opened();
  // A device must not be synchronized while a stream of it is captured.
  const int sync = vmm::plugin().pools.active() ? 0 : 1;
  for (int device = 0; vmm::is_device(core, device); ++device) {
    if (vmm_compact(core, device, 0, 1, sync, nullptr) != VMM_OK) vmm::refuse();
  }
}

void vmm_torch_memory_fraction(double fraction, int device) {
  vmm_allocator* core = vmm::opened();
  vmm::Plugin& state = vmm::plugin();
  std::lock_guard lock(state.mutex);
  auto [place, is_new] = state.all_bytes.try_emplace(device, 0);
  if (is_new) place->second = vmm::stat(core, device, "limit_bytes");
  const auto bytes = static_cast<uint64_t>(fraction * static_cast<double>(place->second));
  if (vmm_set_limit(core, device, bytes) != VMM_OK) vmm::refuse();
}

// Asked for by those who hand memory to other processes, who know it by its pages.
void* vmm_torch_base_alloc(void* pointer, size_t* size) {
  vmm_allocator* core = vmm::opened();
  void* base = nullptr;
  uint64_t bytes = 0;
  const int device = vmm::device_of(core, pointer, &base, &bytes);
  if (device < 0) throw std::runtime_error("base_alloc: the address does not lie in memory of vmm");
  vmm::Plugin& state = vmm::plugin();
  std::lock_guard lock(state.mutex);
  if (state.exported.emplace(device, base).second && vmm_pin(core, device, base, bytes, VMM_PIN_IPC) != VMM_OK) {
    vmm::refuse();
  }
  if (size != nullptr) *size = bytes;
  return base;
}

void vmm_torch_record_stream(void* pointer, cudaStream_t stream) {
  if (pointer == nullptr) return;
  vmm_allocator* core = vmm::opened();
  void* base = nullptr;
  uint64_t bytes = 0;
  const int device = vmm::device_of(core, pointer, &base, &bytes);
  if (device < 0) return;  // memory of others, which a tensor may wrap
  if (vmm_record_stream(core, device, base, reinterpret_cast<uint64_t>(stream)) != VMM_OK) vmm::refuse();
}

void vmm_torch_begin_allocate_to_pool(int device, vmm::MempoolId id, vmm::StreamFilter filter) {
  vmm::plugin().pools.begin(vmm::opened(), device, id, std::move(filter));
}

void vmm_torch_end_allocate_to_pool(int device, vmm::MempoolId id) { vmm::plugin().pools.end(device, id); }

void vmm_torch_release_pool(int device, vmm::MempoolId id) { vmm::plugin().pools.release(vmm::opened(), device, id); }

void vmm_torch_hold_pool(int device, vmm::MempoolId id) { vmm::plugin().pools.hold(vmm::opened(), device, id); }

uint32_t vmm_torch_pool_number(int device, vmm::MempoolId id) { return vmm::plugin().pools.look(device, id).first; }

int vmm_torch_pool_uses(int device, vmm::MempoolId id) { return vmm::plugin().pools.look(device, id).second; }

}  // extern "C"

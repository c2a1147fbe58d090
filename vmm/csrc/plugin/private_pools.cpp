// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
//
// See private_pools.h.

#include "plugin/private_pools.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace vmm {
namespace {

std::string name_of(MempoolId id) {
  return "torch pool (" + std::to_string(id.first) + ", " + std::to_string(id.second) + ")";
}

}  // namespace

PrivatePools::Private& PrivatePools::use(vmm_allocator* core, int device, MempoolId id) {
  auto [place, is_new] = pools_.try_emplace({device, id});
  Private& pool = place->second;
  if (is_new && vmm_pool_create(core, device, name_of(id).c_str(), 0, 0, &pool.pool) != VMM_OK) {
    pools_.erase(place);
    throw std::runtime_error(vmm_last_error());
  }
  ++pool.uses;
  return pool;
}

void PrivatePools::begin(vmm_allocator* core, int device, MempoolId id, StreamFilter filter) {
  std::lock_guard lock(mutex_);
  routes_.push_back({device, id, std::move(filter), use(core, device, id).pool});
  active_.store(routes_.size(), std::memory_order_release);
}

void PrivatePools::hold(vmm_allocator* core, int device, MempoolId id) {
  std::lock_guard lock(mutex_);
  use(core, device, id);
}

std::pair<uint32_t, int> PrivatePools::look(int device, MempoolId id) {
  std::lock_guard lock(mutex_);
  const auto place = pools_.find({device, id});
  if (place == pools_.end()) return {0, 0};
  return {place->second.pool, place->second.uses};
}

void PrivatePools::end(int device, MempoolId id) {
  std::lock_guard lock(mutex_);
  const auto last = std::find_if(routes_.rbegin(), routes_.rend(),
                                 [&](const Route& route) { return route.device == device && route.id == id; });
  if (last == routes_.rend()) throw std::runtime_error(name_of(id) + ": it takes no requests that could end");
  routes_.erase(std::next(last).base());
  active_.store(routes_.size(), std::memory_order_release);
}

void PrivatePools::release(vmm_allocator* core, int device, MempoolId id) {
  std::lock_guard lock(mutex_);
  const auto place = pools_.find({device, id});
  if (place == pools_.end()) throw std::runtime_error(name_of(id) + ": it is not in use");
  Private& pool = place->second;
  if (--pool.uses > 0) return;
  for (const auto& [pointer, size] : pool.pinned) vmm_unpin(core, device, pointer, size, VMM_PIN_GRAPH);
  vmm_pool_release(core, device, pool.pool);
  pools_.erase(place);
}

uint32_t PrivatePools::pool_for(int device, cudaStream_t stream, uint32_t otherwise) {
  std::lock_guard lock(mutex_);
  for (auto route = routes_.rbegin(); route != routes_.rend(); ++route) {
    if (route->device == device && route->filter(stream)) return route->pool;
  }
  return otherwise;
}

void PrivatePools::keep(vmm_allocator* core, int device, uint32_t pool, void* pointer, uint64_t size) {
  std::lock_guard lock(mutex_);
  for (auto& [key, row] : pools_) {
    if (key.first != device || row.pool != pool) continue;
    // Blocks of a pool come and go at the same addresses: one pin for each.
    if (row.pinned.contains({pointer, size})) return;
    if (vmm_pin(core, device, pointer, size, VMM_PIN_GRAPH) == VMM_OK) row.pinned.insert({pointer, size});
    return;
  }
}

void PrivatePools::forget() {
  std::lock_guard lock(mutex_);
  pools_.clear();
  routes_.clear();
  active_.store(0);
}

}  // namespace vmm

// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
//
// Torch's private pools, of captured graphs above all. A graph names addresses for as long as it can be
// replayed, also those of blocks that are free again: whatever comes from such a pool is pinned until
// the pool is released for the last time.

#pragma once

#include <atomic>
#include <map>
#include <mutex>
#include <set>
#include <vector>

#include "plugin/torch_plugin.h"

namespace vmm {

class PrivatePools {
 public:
  // Throw std::runtime_error.
  void begin(vmm_allocator* core, int device, MempoolId id, StreamFilter filter);
  void end(int device, MempoolId id);
  void hold(vmm_allocator* core, int device, MempoolId id);
  void release(vmm_allocator* core, int device, MempoolId id);

  // Whether some pool takes requests now.
  bool active() const { return active_.load(std::memory_order_acquire) != 0; }

  // The pool that such a request goes to, or `otherwise`.
  uint32_t pool_for(int device, cudaStream_t stream, uint32_t otherwise);

  // The number and the uses of a pool; zeros if there is none.
  std::pair<uint32_t, int> look(int device, MempoolId id);

  // Pins what came from a private pool; memory from other pools is let be.
  void keep(vmm_allocator* core, int device, uint32_t pool, void* pointer, uint64_t size);

  void forget();

 private:
  struct Private {
    uint32_t pool = 0;
    int uses = 0;
    std::set<std::pair<void*, uint64_t>> pinned;
  };
  struct Route {
    int device;
    MempoolId id;
    StreamFilter filter;
    uint32_t pool;
  };

  Private& use(vmm_allocator* core, int device, MempoolId id);

  std::mutex mutex_;
  std::map<std::pair<int, MempoolId>, Private> pools_;
  std::vector<Route> routes_;
  std::atomic<size_t> active_{0};
};

}  // namespace vmm

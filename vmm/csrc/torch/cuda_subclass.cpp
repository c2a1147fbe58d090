// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
//
// See cuda_subclass.h. What the class does not override behaves as torch's CUDAPluggableAllocator does:
// checkpoints of pools, handles for other processes and trackers of single events throw and say so.

#include "torch/cuda_subclass.h"

#include <cuda_runtime_api.h>
#include <torch/csrc/cuda/CUDAPluggableAllocator.h>
#include <torch/headeronly/version.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <stdexcept>
#include <string>
#include <unordered_set>
#include <vector>

#include "torch/core_functions.h"
#include "torch/cuda_snapshot.h"

namespace vmm {
namespace {

namespace caching = c10::cuda::CUDACachingAllocator;
using c10::CachingDeviceAllocator::DeviceStats;
using Base = torch::cuda::CUDAPluggableAllocator::CUDAPluggableAllocator;

class TorchAllocator final : public Base {
 public:
  TorchAllocator(CoreFunctions call, vmm_allocator* core)
      : Base([this](size_t size, int device, cudaStream_t stream) { return serve(size, device, stream); },
             [this](void* pointer, size_t size, int device, cudaStream_t stream) {
               call_.torch_free(pointer, static_cast<ssize_t>(size), device, stream);
             }),
        call_(call),
        core_(core) {
    set_init_fn(call_.torch_init);
    set_reset_fn(call_.torch_reset);
    set_base_alloc_fn(call_.torch_base_alloc);
    set_record_stream_fn(call_.torch_record_stream);
    set_begin_allocate_to_pool(call_.torch_begin);
    set_end_allocate_to_pool_fn(call_.torch_end);
    set_release_pool(call_.torch_release);
  }

  std::string name() override { return "vmm"; }

  double getMemoryFraction(c10::DeviceIndex device) override {
    std::lock_guard lock(mutex_);
    const auto found = fractions_.find(device);
    return found == fractions_.end() ? 1.0 : found->second;
  }

  void setMemoryFraction(double fraction, c10::DeviceIndex device) override {
    call_.torch_memory_fraction(fraction, device);
    std::lock_guard lock(mutex_);
    fractions_[device] = fraction;
  }

  std::vector<caching::StreamSegmentSize> getExpandableSegmentSizes(c10::DeviceIndex) override { return {}; }

  void cacheInfo(c10::DeviceIndex device, size_t* largest) override {
    for (size_t i = 0; i < call_.stat_count(); ++i) {
      if (std::string(call_.stat_name(i)) != "largest_run") continue;
      std::vector<uint64_t> row(call_.stat_count());
      check(call_.stats(core_, device, row.data(), row.size()));
      *largest = std::max(*largest, static_cast<size_t>(row[i]));
    }
  }

  DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    DeviceStats stats = torch_stats(call_, core_, device);
    std::lock_guard lock(mutex_);
    for (auto array : kAccumulated) {
      for (size_t pool = 0; pool < (stats.*array).size(); ++pool) {
        (stats.*array)[pool].allocated -= (since_[device].*array)[pool].allocated;
        (stats.*array)[pool].freed -= (since_[device].*array)[pool].freed;
      }
    }
    return stats;
  }

  void resetAccumulatedStats(c10::DeviceIndex device) override {
    DeviceStats stats = torch_stats(call_, core_, device);
    std::lock_guard lock(mutex_);
    since_[device] = std::move(stats);
  }

  void resetPeakStats(c10::DeviceIndex device) override { check(call_.reset_peak(core_, device)); }

  caching::SnapshotInfo snapshot(c10::MempoolId_t id, bool include_traces) override {
    caching::SnapshotInfo result;
    result.config_metadata.expandable_segments = true;
    for (int device = 0; call_.stats(core_, device, nullptr, 0) == VMM_OK; ++device) {
      const bool all = id == c10::MempoolId_t{0, 0};
      const uint32_t pool = all ? 0 : call_.torch_pool_number(device, id);
      result.device_traces.emplace_back();
      if (!all && pool == 0) continue;
      for (auto& segment : torch_segments(call_, core_, device, pool, id))
        result.segments.push_back(std::move(segment));
    }
    if (include_traces) {
      std::lock_guard lock(mutex_);
      collect();
      append_traces(events_, streams(), &result.device_traces);
    }
    return result;
  }

  // Contexts are those of vmm.record; torch's own are not taken.
  void recordHistory(bool enabled, caching::CreateContextFn, size_t most, caching::RecordContext, bool clear,
                     const std::vector<std::string>&) override {
    std::lock_guard lock(mutex_);
    if (recording_) collect();
    if (clear) events_.clear();
    if (enabled) {
      most_ = std::clamp<size_t>(most, 1, 1u << 24);
      check(call_.record_start(core_, most_, 0, 0));
    } else if (recording_) {
      check(call_.record_stop(core_));
    }
    recording_ = enabled;
  }

  bool isHistoryEnabled() override {
    std::lock_guard lock(mutex_);
    return recording_;
  }

  void attachOutOfMemoryObserver(caching::OutOfMemoryObserver observer) override {
    std::lock_guard lock(mutex_);
    observers_.push_back(std::move(observer));
  }

  // Nothing is rejected before it was tried.
  void attachOomRejectionObserver(caching::OomRejectionObserver) override {}

  void createOrIncrefPool(c10::DeviceIndex device, c10::MempoolId_t id,
                          std::shared_ptr<caching::CUDAAllocator> allocator) override {
    TORCH_CHECK(allocator == nullptr, "MemPool: an allocator of its own has no place under vmm, which serves all");
    call_.torch_hold_pool(device, id);
  }

  int getPoolUseCount(c10::DeviceIndex device, c10::MempoolId_t id) override {
    return call_.torch_pool_uses(device, id);
  }

  bool checkPoolLiveAllocations(c10::DeviceIndex device, c10::MempoolId_t id,
                                const std::unordered_set<void*>& expected) override {
    const uint32_t pool = call_.torch_pool_number(device, id);
    TORCH_CHECK(pool != 0, "checkPoolLiveAllocations: there is no such pool");
    const auto rows = all_rows<vmm_block_info>(
        [&](auto* out, size_t capacity, size_t* count) { return call_.blocks(core_, device, out, capacity, count); });
    size_t live = 0;
    for (const vmm_block_info& row : rows) {
      if (row.pool != pool || row.state != VMM_BLOCK_ACTIVE) continue;
      if (!expected.contains(reinterpret_cast<void*>(row.address))) return false;
      ++live;
    }
    return live == expected.size();
  }

  // Mapped memory cannot be copied between devices by the plain call unless they are peers.
  cudaError_t memcpyAsync(void* to, int to_device, const void* from, int from_device, size_t size, cudaStream_t stream,
                          bool peers) override {
    if (peers || to_device == from_device) {
      return cudaMemcpyAsync(to, from, size, cudaMemcpyDeviceToDevice, stream);
    }
    return cudaMemcpyPeerAsync(to, to_device, from, from_device, size, stream);
  }

 private:
  static constexpr c10::CachingAllocator::StatArray DeviceStats::* kAccumulated[] = {
      &DeviceStats::allocation,      &DeviceStats::segment,
      &DeviceStats::active,          &DeviceStats::inactive_split,
      &DeviceStats::allocated_bytes, &DeviceStats::reserved_bytes,
      &DeviceStats::active_bytes,    &DeviceStats::inactive_split_bytes,
      &DeviceStats::requested_bytes,
  };

  void* serve(size_t size, int device, cudaStream_t stream) {
    try {
      return call_.torch_malloc(static_cast<ssize_t>(size), device, stream);
    } catch (const std::runtime_error& error) {
      const std::string why = error.what();
      std::vector<caching::OutOfMemoryObserver> observers;
      {
        std::lock_guard lock(mutex_);
        observers = observers_;
      }
      size_t free = 0, total = 0;
      if (!observers.empty()) C10_CUDA_CHECK(cudaMemGetInfo(&free, &total));
      for (const auto& observer : observers) observer(device, size, total, free);
      TORCH_CHECK_WITH(OutOfMemoryError, why.find("out of memory") == std::string::npos, why);
      TORCH_CHECK(false, why);
    }
  }

  void check(vmm_status status) const { TORCH_CHECK(status == VMM_OK, call_.last_error()); }

  std::vector<uint64_t> streams() const {
    return all_rows<uint64_t>(
        [&](auto* out, size_t capacity, size_t* count) { return call_.streams(core_, out, capacity, count); });
  }

  // Moves what the ring of the core holds to ours, and forgets the oldest beyond what was asked for.
  void collect() {
    std::vector<vmm_event> part(1u << 16);
    size_t count = part.size();
    for (uint64_t lost = 0; count == part.size();) {
      if (call_.record_read(core_, part.data(), part.size(), &count, &lost) != VMM_OK) return;
      events_.insert(events_.end(), part.begin(), part.begin() + static_cast<ptrdiff_t>(count));
    }
    if (events_.size() > most_) events_.erase(events_.begin(), events_.end() - static_cast<ptrdiff_t>(most_));
  }

  const CoreFunctions call_;
  vmm_allocator* const core_;

  std::mutex mutex_;  // of what follows
  std::map<c10::DeviceIndex, double> fractions_;
  std::map<c10::DeviceIndex, DeviceStats> since_;
  std::vector<caching::OutOfMemoryObserver> observers_;
  std::vector<vmm_event> events_;
  size_t most_ = 1;
  bool recording_ = false;
};

thread_local std::string refusal;

}  // namespace
}  // namespace vmm

extern "C" {

const char* vmm_cuda_subclass_torch(void) { return TORCH_VERSION; }

const char* vmm_cuda_subclass_error(void) { return vmm::refusal.c_str(); }

vmm_status vmm_cuda_subclass_install(const char* core_library, vmm_allocator* core) {
  try {
    const vmm::CoreLibrary library(core_library);
    auto allocator = std::make_shared<vmm::TorchAllocator>(vmm::CoreFunctions(library), core);
    torch::cuda::CUDAPluggableAllocator::changeCurrentAllocator(allocator);
    return VMM_OK;
  } catch (const std::exception& error) {
    vmm::refusal = error.what();
    return VMM_UNSUPPORTED;
  }
}

}  // extern "C"

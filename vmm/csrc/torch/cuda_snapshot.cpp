// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
//
// See cuda_snapshot.h.

#include "torch/cuda_snapshot.h"

#include <chrono>
#include <string>
#include <unordered_map>
#include <utility>

namespace vmm {
namespace {

using c10::CachingAllocator::Stat;
using c10::CachingAllocator::StatArray;
using c10::CachingDeviceAllocator::BlockInfo;
using c10::CachingDeviceAllocator::DeviceStats;
using c10::CachingDeviceAllocator::SegmentInfo;
using c10::CachingDeviceAllocator::TraceEntry;

constexpr std::pair<const char*, StatArray DeviceStats::*> kArrays[] = {
    {"allocation", &DeviceStats::allocation},
    {"segment", &DeviceStats::segment},
    {"active", &DeviceStats::active},
    {"inactive_split", &DeviceStats::inactive_split},
    {"allocated_bytes", &DeviceStats::allocated_bytes},
    {"reserved_bytes", &DeviceStats::reserved_bytes},
    {"active_bytes", &DeviceStats::active_bytes},
    {"inactive_split_bytes", &DeviceStats::inactive_split_bytes},
    {"requested_bytes", &DeviceStats::requested_bytes},
};
constexpr std::pair<const char*, int64_t DeviceStats::*> kCounters[] = {
    {"num_alloc_retries", &DeviceStats::num_alloc_retries},       {"num_ooms", &DeviceStats::num_ooms},
    {"num_sync_all_streams", &DeviceStats::num_sync_all_streams}, {"num_device_alloc", &DeviceStats::num_device_alloc},
    {"num_device_free", &DeviceStats::num_device_free},
};
constexpr const char* kPools[] = {"all", "small", "large"};  // in the order of StatType
constexpr std::pair<const char*, int64_t Stat::*> kKinds[] = {
    {"current", &Stat::current}, {"peak", &Stat::peak}, {"allocated", &Stat::allocated}, {"freed", &Stat::freed}};

constexpr std::pair<vmm_action, TraceEntry::Action> kActions[] = {
    {VMM_EVENT_ALLOC, TraceEntry::ALLOC},
    {VMM_EVENT_FREE_REQUESTED, TraceEntry::FREE_REQUESTED},
    {VMM_EVENT_FREE_COMPLETED, TraceEntry::FREE_COMPLETED},
    {VMM_EVENT_MAP, TraceEntry::SEGMENT_MAP},
    {VMM_EVENT_UNMAP, TraceEntry::SEGMENT_UNMAP},
    {VMM_EVENT_OOM, TraceEntry::OOM},
};

// From the clock of the recorder to the one that torch shows, in microseconds.
int64_t wall_clock_us(uint64_t monotonic_ns) {
  using namespace std::chrono;
  const auto now = duration_cast<nanoseconds>(steady_clock::now().time_since_epoch()).count();
  const auto wall = duration_cast<nanoseconds>(system_clock::now().time_since_epoch()).count();
  return (static_cast<int64_t>(monotonic_ns) - now + wall) / 1000;
}

}  // namespace

DeviceStats torch_stats(const CoreFunctions& call, vmm_allocator* core, int device) {
  std::vector<uint64_t> row(call.stat_count());
  TORCH_CHECK(call.stats(core, device, row.data(), row.size()) == VMM_OK, call.last_error());
  std::unordered_map<std::string, int64_t> values;
  for (size_t i = 0; i < row.size(); ++i) values[call.stat_name(i)] = static_cast<int64_t>(row[i]);

  DeviceStats stats;
  for (const auto& [name, array] : kArrays) {
    for (size_t pool = 0; pool < std::size(kPools); ++pool) {
      for (const auto& [kind, field] : kKinds) {
        (stats.*array)[pool].*field = values[std::string(name) + "." + kPools[pool] + "." + kind];
      }
    }
  }
  for (const auto& [name, field] : kCounters) stats.*field = values[name];
  stats.max_split_size = -1;
  return stats;
}

std::vector<SegmentInfo> torch_segments(const CoreFunctions& call, vmm_allocator* core, int device, uint32_t pool,
                                        c10::MempoolId_t id) {
  const auto rows = all_rows<vmm_block_info>(
      [&](auto* out, size_t capacity, size_t* count) { return call.blocks(core, device, out, capacity, count); });
  std::vector<SegmentInfo> segments;
  uint64_t end = 0;
  uint32_t arena = UINT32_MAX;
  for (const vmm_block_info& row : rows) {
    if (row.state == VMM_BLOCK_FREE_UNMAPPED || (pool != 0 && row.pool != pool)) continue;
    if (segments.empty() || row.arena != arena || row.address != end) {
      SegmentInfo& made = segments.emplace_back();
      made.device = static_cast<c10::DeviceIndex>(device);
      made.address = row.address;
      made.is_large = true;
      made.is_expandable = true;
      made.owner_private_pool_id = id;
    }
    arena = row.arena;
    end = row.address + row.size;
    SegmentInfo& segment = segments.back();
    BlockInfo& block = segment.blocks.emplace_back();
    block.size = row.size;
    block.requested_size = row.requested;
    block.allocated = row.state == VMM_BLOCK_ACTIVE;
    block.active = block.allocated || row.state == VMM_BLOCK_PENDING;
    segment.total_size += row.size;
    if (block.allocated) segment.allocated_size += row.size;
    if (block.active) segment.active_size += row.size, segment.requested_size += row.requested;
  }
  return segments;
}

void append_traces(const std::vector<vmm_event>& events, const std::vector<uint64_t>& streams,
                   std::vector<std::vector<TraceEntry>>* traces) {
  for (const vmm_event& event : events) {
    for (const auto& [ours, theirs] : kActions) {
      if (event.action != ours) continue;
      if (traces->size() <= event.device) traces->resize(event.device + 1u);
      const bool oom = ours == VMM_EVENT_OOM;
      void* stream = event.stream < streams.size() ? reinterpret_cast<void*>(streams[event.stream]) : nullptr;
      TraceEntry& entry = (*traces)[event.device].emplace_back(theirs, static_cast<c10::DeviceIndex>(event.device),
                                                               oom ? event.aux : event.address, event.size, stream,
                                                               c10::MempoolId_t{0, 0}, c10::approx_time_t{});
      entry.time_.t_ = wall_clock_us(event.t_ns);
    }
  }
}

}  // namespace vmm

// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
//
// What the core tells, in the words of torch.

#pragma once

#include <c10/cuda/CUDACachingAllocator.h>

#include <vector>

#include "torch/core_functions.h"

namespace vmm {

// A segment of torch is a physical page here; there is no bound for splitting, so nothing is oversize.
c10::CachingDeviceAllocator::DeviceStats torch_stats(const CoreFunctions& call, vmm_allocator* core, int device);

// Every maximal range with pages behind it is a segment. `pool` 0 means all pools, `id` names the one.
std::vector<c10::CachingDeviceAllocator::SegmentInfo> torch_segments(const CoreFunctions& call, vmm_allocator* core,
                                                                     int device, uint32_t pool, c10::MempoolId_t id);

// Events of the recorder that torch has a word for, appended to the traces by device.
void append_traces(const std::vector<vmm_event>& events, const std::vector<uint64_t>& streams,
                   std::vector<std::vector<c10::CachingDeviceAllocator::TraceEntry>>* traces);

// All rows of a list of the core, which may grow between two calls.
template <class Row, class Call>
std::vector<Row> all_rows(Call call) {
  std::vector<Row> rows;
  size_t count = 0;
  do {
    rows.resize(count);
    if (call(rows.data(), rows.size(), &count) != VMM_OK) return {};
  } while (count > rows.size());
  rows.resize(count);
  return rows;
}

}  // namespace vmm

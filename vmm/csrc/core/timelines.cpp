// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
//
// See timelines.h.

#include "core/timelines.h"

#include <algorithm>

namespace vmm {

StreamIndex Timelines::find(Stream stream) {
  constexpr size_t kFew = 8;  // looking at so many is faster than asking the table
  for (size_t i = 0; i < std::min(lines_.size(), kFew); ++i) {
    if (lines_[i].stream == stream) return last_index_ = static_cast<StreamIndex>(i);
  }
  if (auto known = indexes_.find(stream); known != indexes_.end()) return last_index_ = known->second;
  if (lines_.size() >= kMostStreams) throw TooManyStreams();
  StreamIndex index = static_cast<StreamIndex>(lines_.size());
  Line line;
  line.stream = stream;
  lines_.push_back(std::move(line));
  try {
    indexes_.emplace(stream, index);
  } catch (...) {
    lines_.pop_back();
    throw;
  }
  return last_index_ = index;
}

vmm_status Timelines::event_get(Event* out) {
  if (!spare_.empty()) {
    *out = spare_.back();
    spare_.pop_back();
    return VMM_OK;
  }
  return driver_->event_create(device_, out);
}

vmm_status Timelines::cover(Fence fence) {
  Line& line = lines_[fence.stream];
  if (covered(fence)) return VMM_OK;
  if (driver_->capturing(device_, line.stream)) return VMM_NOT_READY;
  Event event = 0;
  if (vmm_status status = event_get(&event); status != VMM_OK) return status;
  if (vmm_status status = driver_->event_record(device_, event, line.stream); status != VMM_OK) {
    spare_.push_back(event);
    return status;
  }
  line.events.emplace_back(line.seq, event);
  return VMM_OK;
}

void Timelines::cover_all() {
  for (size_t i = 0; i < lines_.size(); ++i) cover({static_cast<StreamIndex>(i), lines_[i].seq});
}

bool Timelines::poll() {
  bool changed = false;
  for (Line& line : lines_) {
    while (!line.events.empty() && driver_->event_query(device_, line.events.front().second) == VMM_OK) {
      line.done = std::max(line.done, line.events.front().first);
      spare_.push_back(line.events.front().second);
      line.events.pop_front();
      changed = true;
    }
  }
  return changed;
}

vmm_status Timelines::wait(StreamIndex user, Fence fence) {
  if (ordered(user, fence)) return VMM_OK;
  if (driver_->capturing(device_, lines_[user].stream)) return VMM_NOT_READY;
  if (vmm_status status = cover(fence); status != VMM_OK) return status;
  for (const auto& [seq, event] : lines_[fence.stream].events) {
    if (seq < fence.seq) continue;
    if (vmm_status status = driver_->stream_wait(device_, lines_[user].stream, event); status != VMM_OK) return status;
    auto& waited = lines_[user].waited;
    if (waited.size() <= fence.stream) waited.resize(fence.stream + 1u);
    waited[fence.stream] = std::max(waited[fence.stream], seq);
    ++waits;
    return VMM_OK;
  }
  return VMM_OK;  // done meanwhile
}

vmm_status Timelines::sync(Fence fence) {
  if (known_done(fence)) return VMM_OK;
  if (vmm_status status = cover(fence); status != VMM_OK) return status;
  Line& line = lines_[fence.stream];
  for (const auto& [seq, event] : line.events) {
    if (seq < fence.seq) continue;
    if (vmm_status status = driver_->event_sync(device_, event); status != VMM_OK) return status;
    break;
  }
  poll();
  line.done = std::max(line.done, fence.seq);
  return VMM_OK;
}

void Timelines::all_done() {
  for (Line& line : lines_) {
    line.done = line.seq;
    for (const auto& [seq, event] : line.events) spare_.push_back(event);
    line.events.clear();
  }
}

void Timelines::destroy_events() {
  all_done();
  for (Event event : spare_) driver_->event_destroy(device_, event);
  spare_.clear();
}

}  // namespace vmm

// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
//
// Fences without an event per free.
//
// A free puts a number (seq) of its stream on the block: no driver call. Only when somebody needs to know
// whether that work is done is one event recorded, which answers for every smaller number. In the steady
// state of one stream nobody ever asks.
//
// `waited` remembers which numbers of another stream a stream already waits for, on the device: memory with
// such a fence may be used without another wait.

#pragma once

#include <cstdint>
#include <deque>
#include <stdexcept>
#include <unordered_map>
#include <vector>

#include "driver.h"

namespace vmm {

using StreamIndex = uint16_t;

struct Fence {
  StreamIndex stream = 0;
  uint64_t seq = 0;
};

// Blocks name a stream in 16 bits.
struct TooManyStreams : std::runtime_error {
  TooManyStreams() : std::runtime_error("stream: 65533 streams were seen already; a program makes them without end") {}
};

class Timelines {
 public:
  Timelines(Driver* driver, int device) : driver_(driver), device_(device) {}

  static constexpr size_t kMostStreams = UINT16_MAX - 2;  // two of the classes of blocks are no stream's

  // The index of a stream; a new one gets the next. Throws TooManyStreams.
  StreamIndex index_of(Stream stream) {
    if (last_index_ < lines_.size() && lines_[last_index_].stream == stream) return last_index_;
    return find(stream);
  }
  Stream handle(StreamIndex index) const { return lines_[index].stream; }
  size_t size() const { return lines_.size(); }

  // A free on the stream.
  Fence mark(StreamIndex stream) { return {stream, ++lines_[stream].seq}; }

  // As far as is known without asking the driver.
  bool known_done(Fence fence) const { return fence.seq <= lines_[fence.stream].done; }

  // Whether work that `user` queues from now on runs after the fence.
  bool ordered(StreamIndex user, Fence fence) const {
    if (fence.stream == user || known_done(fence)) return true;
    const auto& waited = lines_[user].waited;
    return fence.stream < waited.size() && waited[fence.stream] >= fence.seq;
  }

  // Whether an event answers for the fence.
  bool covered(Fence fence) const {
    const Line& line = lines_[fence.stream];
    return fence.seq <= line.done || (!line.events.empty() && line.events.back().first >= fence.seq);
  }

  // Makes sure that an event answers for the fence. Never on a stream that is being captured.
  vmm_status cover(Fence fence);

  // One event on every stream that has a fence which none answers for.
  void cover_all();

  // Asks the driver about every event that is outstanding. True if anything became done.
  bool poll();

  // Makes `user` wait on the device. Counted; nothing blocks here.
  vmm_status wait(StreamIndex user, Fence fence);

  // Blocks until the fence is done. Whoever calls it for the sake of the allocator counts it in `syncs`.
  vmm_status sync(Fence fence);

  // Everything queued so far is done: call after a synchronization of the device.
  void all_done();

  void destroy_events();

  uint64_t waits = 0, syncs = 0;

 private:
  struct Line {
    Stream stream = 0;
    uint64_t seq = 0, done = 0;
    std::deque<std::pair<uint64_t, Event>> events;  // each answers for all numbers up to its own
    std::vector<uint64_t> waited;
  };

  StreamIndex find(Stream stream);  // the slow part of index_of
  vmm_status event_get(Event* out);

  Driver* driver_;
  int device_;
  std::vector<Line> lines_;
  std::unordered_map<Stream, StreamIndex> indexes_;
  std::vector<Event> spare_;
  StreamIndex last_index_ = 0;
};

}  // namespace vmm

// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
//
// A block: a piece of an address range. Blocks tile what an arena has handed out.

#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "core/timelines.h"

namespace vmm {

struct Region;

constexpr uint64_t kUnit = 512;  // of every address and size of a block

enum class BlockState : uint8_t {
  kActive,
  kMapped,    // free, physical pages behind all of it
  kUnmapped,  // free, no pages; begins and ends at a page
  kStale,     // the same, but an old mapping is still there until its fence is done
};

// Free blocks are indexed by who may take them at once.
using Class = uint16_t;
constexpr Class kDone = 0;         // everybody: no fence is open
constexpr Class kMixed = 1;        // fences of several streams
constexpr Class kFirstStream = 2;  // plus a stream index: that stream, others after a wait

// The first cache line holds what walks and searches read.
struct alignas(64) Block {
  uint64_t address = 0, size = 0;
  Block* prev = nullptr;  // neighbors by address, within the region
  Block* next = nullptr;
  Block* left = nullptr;  // tree of the free index
  Block* right = nullptr;
  uint64_t seq = 0;   // with a stream class: the fence
  Class cls = kDone;  // free: the index it is in; active: class of the stream of the request
  BlockState state = BlockState::kActive;
  bool in_seams = false;
  uint32_t visit = 0;  // of the last walk that came by

  Region* region = nullptr;
  uint64_t requested = 0;
  std::unique_ptr<std::vector<Fence>> more;  // mixed: the fences; active: recorded streams (seq unused)
  Block* seam_prev = nullptr;
  Block* seam_next = nullptr;
  uint32_t tag = 0, stack = 0;

  uint64_t end() const { return address + size; }
  bool is_free() const { return state == BlockState::kMapped || state == BlockState::kUnmapped; }

  template <class F>
  void each_fence(F visit_fence) const {
    if (cls >= kFirstStream) visit_fence(Fence{static_cast<StreamIndex>(cls - kFirstStream), seq});
    if (cls == kMixed && more) {
      for (const Fence& fence : *more) visit_fence(fence);
    }
  }
};

// Blocks come from chunks and go back to a list: no call of malloc on the hot path.
class BlockSlab {
 public:
  Block* get() {
    if (spare_ == nullptr) grow();
    Block* block = spare_;
    spare_ = block->next;
    block->next = nullptr;
    return block;
  }
  void put(Block* block) {
    block->more.reset();
    block->state = BlockState::kActive;  // a list that still names it can tell that it is gone
    block->in_seams = false;
    block->next = spare_;
    spare_ = block;
  }

 private:
  void grow() {
    constexpr size_t kChunk = 256;
    chunks_.push_back(std::make_unique<Block[]>(kChunk));
    for (size_t i = 0; i < kChunk; ++i) put(&chunks_.back()[i]);
  }

  std::vector<std::unique_ptr<Block[]>> chunks_;
  Block* spare_ = nullptr;
};

}  // namespace vmm

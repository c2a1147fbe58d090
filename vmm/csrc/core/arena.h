// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
//
// An arena: address ranges cut into blocks, the virtual pages below them, and the indexes of free blocks.
//
// Arenas do not belong to a stream. There is one for small and one for large requests, and a pair for each
// private pool. Nothing here calls the driver: these are tables, and remap.cpp keeps them and the driver in
// step.

#pragma once

#include <algorithm>
#include <memory>
#include <vector>

#include "core/block.h"
#include "core/free_index.h"
#include "core/pages.h"

namespace vmm {

struct Arena;

struct Slot {  // one virtual page
  PageId page = kNoPage;
  bool stale = false;
  uint32_t mark = 0;  // of the plan that uses it
};

struct Region {  // one reserved address range
  Arena* arena = nullptr;
  Address base = 0;
  uint64_t reserved = 0;
  uint64_t page_size = 0;
  std::vector<Slot> slots;  // of the part that is in use
  Block* first = nullptr;
  Block* last = nullptr;

  uint64_t used() const { return slots.size() * page_size; }
  Address end() const { return base + used(); }
  size_t slot_of(Address at) const { return static_cast<size_t>((at - base) / page_size); }
  Address address_of(size_t slot) const { return base + slot * page_size; }
  Address page_floor(Address at) const { return base + (at - base) / page_size * page_size; }
  Address page_ceil(Address at) const { return base + (at - base + page_size - 1) / page_size * page_size; }
};

struct Arena {
  uint32_t id = 0;
  uint32_t pool = 0;
  bool small = false;
  bool asleep = false;
  uint64_t page_size = 0;
  uint64_t mapped_pages = 0;
  uint64_t live = 0;  // active blocks
  std::vector<std::unique_ptr<Region>> regions;
  std::vector<std::unique_ptr<FreeIndex>> classes;  // mapped free blocks, by class
  FreeIndex unmapped;
  Block* seams = nullptr;  // free blocks from which a run of several blocks can be found
  BlockSlab* slab = nullptr;
  const Timelines* timelines = nullptr;

  FreeIndex& index(Class cls) {
    if (classes.size() <= cls) classes.resize(cls + 1u);
    if (!classes[cls]) classes[cls] = std::make_unique<FreeIndex>();
    return *classes[cls];
  }

  // Puts a block whose state and fences are set among the free ones and merges it with its neighbors.
  // Returns the block that it has become part of.
  Block* add_free(Block* block);

  // Takes a free block out of the indexes; it still tiles the region.
  void remove_free(Block* block);

  // Cuts a block that is in no index in two; returns the upper part, with the same state and fences.
  Block* split(Block* block, uint64_t size);

  // `low` takes over its upper neighbor `high`; both are in no index. Fences of free blocks are united.
  void append(Block* low, Block* high);

  bool all_known_done(const Block* block) const;

  // Puts a free block into its index without looking at its neighbors.
  void index_free(Block* block);

  // Adds `size` bytes (whole pages) of unmapped range at the end of the last region.
  Block* extend(Region* region, uint64_t size);

  // Gives unmapped range at the end of the regions back to the part that was never in use.
  void shrink();

  Region* region_of(Address at) const {
    for (const auto& region : regions) {
      if (at >= region->base && at < region->end()) return region.get();
    }
    return nullptr;
  }

  uint64_t free_mapped_bytes() const {
    uint64_t sum = 0;
    for (const auto& index : classes) sum += index ? index->bytes() : 0;
    return sum;
  }

  // A seam is a block from which slow paths find runs: any unmapped one, and a mapped one that follows
  // another that it could not be merged with. Call when the state of the block or of its lower neighbor
  // has changed.
  void update_seam(Block* block) {
    if (block == nullptr) return;
    bool wanted = block->state == BlockState::kUnmapped ||
                  (block->state == BlockState::kMapped && block->prev != nullptr && block->prev->is_free());
    if (wanted != block->in_seams) set_seam(block, wanted);
  }

 private:
  bool can_merge(Block* low, Block* high) const;
  void set_seam(Block* block, bool wanted);
};

// The hot path, in the header so that it is compiled into its callers.

// Two free neighbors become one when whoever may use one may use both, or when a fence turns out to be done.
// Blocks of two streams with open fences stay apart: merged, neither stream could use its half at once.
inline bool Arena::can_merge(Block* low, Block* high) const {
  if (low->state != high->state) return false;
  if (low->state == BlockState::kUnmapped) return true;
  if (low->state != BlockState::kMapped) return false;
  if (low->cls == high->cls && low->cls != kMixed) return true;
  if (low->cls == kDone || high->cls == kDone) return true;
  return all_known_done(low) || all_known_done(high);
}

inline void Arena::append(Block* low, Block* high) {
  if (low->state == BlockState::kMapped) {
    if (low->cls == high->cls && low->cls != kMixed) {
      low->seq = std::max(low->seq, high->seq);
    } else if (low->cls == kDone || (high->cls != kDone && all_known_done(low))) {
      low->cls = high->cls;
      low->seq = high->seq;
      low->more = std::move(high->more);
    }
  }
  low->size += high->size;
  low->next = high->next;
  if (high->next != nullptr) {
    high->next->prev = low;
  } else {
    low->region->last = low;
  }
  if (high->in_seams) set_seam(high, false);
  slab->put(high);
}

inline Block* Arena::add_free(Block* block) {
  // After a merge a neighbor that did not fit before may fit.
  for (bool merged = true; merged;) {
    merged = false;
    Block* low = block->prev;
    if (low != nullptr && low->is_free() && can_merge(low, block)) {
      remove_free(low);
      append(low, block);
      block = low;
      merged = true;
    }
    Block* high = block->next;
    if (high != nullptr && high->is_free() && can_merge(block, high)) {
      remove_free(high);
      append(block, high);
      merged = true;
    }
  }
  index_free(block);
  return block;
}

inline void Arena::index_free(Block* block) {
  (block->state == BlockState::kUnmapped ? unmapped : index(block->cls)).insert(block);
  update_seam(block);
  update_seam(block->next);
}

inline void Arena::remove_free(Block* block) {
  (block->state == BlockState::kUnmapped ? unmapped : *classes[block->cls]).erase(block);
  if (block->in_seams) set_seam(block, false);
}

inline Block* Arena::split(Block* block, uint64_t size) {
  Block* high = slab->get();
  high->address = block->address + size;
  high->size = block->size - size;
  high->requested = 0;
  high->region = block->region;
  high->state = block->state;
  high->cls = block->cls;
  high->seq = block->seq;
  if (block->cls == kMixed && block->more) high->more = std::make_unique<std::vector<Fence>>(*block->more);
  high->tag = high->stack = 0;
  high->prev = block;
  high->next = block->next;
  if (high->next != nullptr) {
    high->next->prev = high;
  } else {
    block->region->last = high;
  }
  block->next = high;
  block->size = size;
  return high;
}

// A maximal row of free blocks. Call with any block of it.
struct Run {
  Block* first = nullptr;
  Block* last = nullptr;

  static Run around(Block* block) {
    Run run{block, block};
    while (run.first->prev != nullptr && run.first->prev->is_free()) run.first = run.first->prev;
    while (run.last->next != nullptr && run.last->next->is_free()) run.last = run.last->next;
    return run;
  }
  Address begin() const { return first->address; }
  Address end() const { return last->end(); }
  uint64_t size() const { return end() - begin(); }
};

}  // namespace vmm

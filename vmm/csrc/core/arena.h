// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
//
// An arena: address ranges cut into blocks, the virtual pages below them, and the indexes of free blocks.
//
// Arenas do not belong to a stream. There is one for small and one for large requests, and a pair for each
// private pool. Nothing here calls the driver: these are tables, and remap.cpp keeps them and the driver in
// step.

#pragma once

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
  bool all_known_done(const Block* block) const;
  void set_seam(Block* block, bool wanted);
};

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

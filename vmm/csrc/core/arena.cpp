// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
//
// See arena.h.

#include "core/arena.h"

#include <algorithm>

namespace vmm {

bool Arena::all_known_done(const Block* block) const {
  bool done = true;
  block->each_fence([&](Fence fence) { done = done && timelines->known_done(fence); });
  return done;
}

// Two free neighbors become one when whoever may use one may use both, or when a fence turns out to be done.
// Blocks of two streams with open fences stay apart: merged, neither stream could use its half at once.
bool Arena::can_merge(Block* low, Block* high) const {
  if (low->state != high->state) return false;
  if (low->state == BlockState::kUnmapped) return true;
  if (low->state != BlockState::kMapped) return false;
  if (low->cls == high->cls && low->cls != kMixed) return true;
  if (low->cls == kDone || high->cls == kDone) return true;
  return all_known_done(low) || all_known_done(high);
}

void Arena::append(Block* low, Block* high) {
  if (low->state == BlockState::kMapped) {
    if (low->cls == high->cls) {
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

Block* Arena::add_free(Block* block) {
  // A merge may change the class, and then a neighbor that did not fit before may fit.
  for (bool again = true; again;) {
    again = false;
    Block* low = block->prev;
    if (low != nullptr && low->is_free() && can_merge(low, block)) {
      remove_free(low);
      append(low, block);
      block = low;
      again = true;
    }
    Block* high = block->next;
    if (high != nullptr && high->is_free() && can_merge(block, high)) {
      remove_free(high);
      append(block, high);
      again = true;
    }
  }
  index_free(block);
  return block;
}

void Arena::index_free(Block* block) {
  (block->state == BlockState::kUnmapped ? unmapped : index(block->cls)).insert(block);
  update_seam(block);
  update_seam(block->next);
}

void Arena::remove_free(Block* block) {
  (block->state == BlockState::kUnmapped ? unmapped : *classes[block->cls]).erase(block);
  if (block->in_seams) set_seam(block, false);
}

Block* Arena::split(Block* block, uint64_t size) {
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

Block* Arena::extend(Region* region, uint64_t size) {
  Block* block = slab->get();
  block->address = region->end();
  block->size = size;
  block->requested = 0;
  block->region = region;
  block->state = BlockState::kUnmapped;
  block->cls = kDone;
  block->prev = region->last;
  block->next = nullptr;
  if (region->last != nullptr) {
    region->last->next = block;
  } else {
    region->first = block;
  }
  region->last = block;
  region->slots.resize(region->slots.size() + size / page_size);
  return add_free(block);
}

void Arena::shrink() {
  for (const auto& region : regions) {
    Block* last = region->last;
    if (last == nullptr || last->state != BlockState::kUnmapped) continue;
    remove_free(last);
    region->last = last->prev;
    (last->prev != nullptr ? last->prev->next : region->first) = nullptr;
    region->slots.resize(region->slot_of(last->address));
    slab->put(last);
  }
}

void Arena::set_seam(Block* block, bool wanted) {
  block->in_seams = wanted;
  if (wanted) {
    block->seam_prev = nullptr;
    block->seam_next = seams;
    if (seams != nullptr) seams->seam_prev = block;
    seams = block;
    return;
  }
  (block->seam_prev != nullptr ? block->seam_prev->seam_next : seams) = block->seam_next;
  if (block->seam_next != nullptr) block->seam_next->seam_prev = block->seam_prev;
}

}  // namespace vmm

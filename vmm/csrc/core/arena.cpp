// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
//
// See arena.h.

#include "core/arena.h"

namespace vmm {

bool Arena::all_known_done(const Block* block) const {
  bool done = true;
  block->each_fence([&](Fence fence) { done = done && timelines->known_done(fence); });
  return done;
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

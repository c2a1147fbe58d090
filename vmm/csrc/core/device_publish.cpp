// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
//
// Bringing the tables in step with what the driver has done. Called when every driver call of a plan
// succeeded, or with what a failed one left behind.

#include <algorithm>

#include "core/device.h"
#include "core/sentences.h"

namespace vmm {

// Takes [low, high) out of the free blocks there and gives it one state. `hint` is a free block that holds
// the byte before `high`; it stays a block as long as anything below `low` is left of it. Returns the new
// block; a kUnmapped or kMapped one still has to be put among the free ones by the caller.
Block* Device::carve(Block* hint, Address low, Address high, BlockState state, Block** rest) {
  Arena* arena = hint->region->arena;
  Block* whole = nullptr;
  *rest = nullptr;
  for (Block* block = hint;;) {
    Block* prev = block->prev;
    arena->remove_free(block);
    if (block->end() > high) *rest = arena->split(block, high - block->address);
    if (block->address < low) {
      Block* upper = arena->split(block, low - block->address);
      upper->state = state;
      arena->index_free(block);
      block = upper;
    }
    bool lowest = block->address <= low;
    block->state = state;
    block->cls = kDone;
    block->more.reset();
    if (whole != nullptr) arena->append(block, whole);
    whole = block;
    if (lowest) return whole;
    block = prev;
  }
}

// Brings the tables in step with what the driver has done.
void Device::publish_moves(const std::vector<Move>& moves, StreamIndex stream) {
  // Sources, from the highest address down, so that `from_block` keeps holding what is left below.
  std::vector<const Move*> sources;
  for (const Move& move : moves) {
    if (move.from != nullptr) sources.push_back(&move);
  }
  std::sort(sources.begin(), sources.end(), [](const Move* a, const Move* b) {
    return a->from->address_of(a->from_slot) > b->from->address_of(b->from_slot);
  });
  // The fence that everything mapped now inherits.
  std::vector<Fence> fences;
  auto inherit = [&](std::vector<Fence>* all, Fence fence) {
    if (timelines_.known_done(fence)) return;
    for (Fence& have : *all) {
      if (have.stream == fence.stream) {
        have.seq = std::max(have.seq, fence.seq);
        return;
      }
    }
    all->push_back(fence);
  };
  for (size_t i = 0; i < sources.size();) {
    // As many pages as lie next to each other and go the same way.
    size_t end = i + 1;
    while (end < sources.size() && sources[end]->from == sources[i]->from && sources[end]->alias == sources[i]->alias &&
           sources[end]->from_slot + 1 == sources[end - 1]->from_slot &&
           sources[end]->from_block == sources[i]->from_block) {
      ++end;
    }
    const Move& top = *sources[i];
    Region* region = top.from;
    size_t low_slot = sources[end - 1]->from_slot;
    Address low = region->address_of(low_slot), high = region->address_of(top.from_slot + 1);
    StaleRange stale{nullptr, low_slot, end - i, {}};
    for (Block* part = top.from_block; part != nullptr; part = part->prev) {
      part->each_fence([&](Fence fence) {
        inherit(&stale.fences, fence);
        if (top.alias) inherit(&fences, fence);
      });
      if (part->address <= low) break;
    }
    for (size_t k = i; k < end; ++k) {
      Slot& slot = region->slots[sources[k]->from_slot];
      record_page(VMM_EVENT_UNMAP, region, sources[k]->from_slot, slot.page, sources[k]->cause, stream);
      if (top.alias) {
        slot.stale = true;
        ++pages_[slot.page].stale_homes;
        ++stats_.aliases;
        if (sources[k]->cross_stream) ++stats_.cross_stream;
      } else {
        slot.page = kNoPage;
        if (sources[k]->to != nullptr) ++stats_.moves;
      }
    }
    Arena* arena = region->arena;
    count_mapped(arena, -static_cast<int64_t>(end - i));
    Block* rest = nullptr;
    Block* hole = carve(top.from_block, low, high, top.alias ? BlockState::kStale : BlockState::kUnmapped, &rest);
    if (top.alias) {
      stale.block = hole;
      stale_.push_back(std::move(stale));
      if (hole->next != nullptr && rest == nullptr) arena->update_seam(hole->next);
    } else {
      // The upper rest is put back first: it may be merged upwards only.
      if (rest != nullptr) arena->index_free(rest);
      rest = nullptr;
      arena->add_free(hole);
    }
    if (rest != nullptr) arena->add_free(rest);
    i = end;
  }

  // Pages with a new home are spare no more; pages without one become spare.
  bool from_spare = false;
  for (const Move& move : moves) {
    Page& page = pages_[move.page];
    if (move.from == nullptr && move.to != nullptr) {
      page.state = PageState::kMapped;
      from_spare = true;
    }
    if (move.from != nullptr && move.to == nullptr) {
      page.state = PageState::kSpare;
      page.home = nullptr;
      pages_.spare.push_back(move.page);
    }
  }

  if (from_spare) {
    std::erase_if(pages_.spare, [&](PageId id) { return pages_[id].state != PageState::kSpare; });
  }

  // Destinations, as contiguous groups.
  std::vector<const Move*> destinations;
  for (const Move& move : moves) {
    if (move.to != nullptr) destinations.push_back(&move);
  }
  std::sort(destinations.begin(), destinations.end(),
            [](const Move* a, const Move* b) { return a->to->address_of(a->to_slot) < b->to->address_of(b->to_slot); });
  for (size_t i = 0; i < destinations.size();) {
    size_t end = i + 1;
    while (end < destinations.size() && destinations[end]->to == destinations[i]->to &&
           destinations[end]->to_slot == destinations[end - 1]->to_slot + 1) {
      ++end;
    }
    Region* region = destinations[i]->to;
    for (size_t k = i; k < end; ++k) {
      const Move& move = *destinations[k];
      Page& page = pages_[move.page];
      page.state = PageState::kMapped;
      page.home = region;
      page.slot = static_cast<uint32_t>(move.to_slot);
      region->slots[move.to_slot].page = move.page;
      record_page(VMM_EVENT_MAP, region, move.to_slot, move.page, move.cause, stream);
    }
    count_mapped(region->arena, static_cast<int64_t>(end - i));
    publish_mapped(region, destinations[i]->to_slot, destinations[end - 1]->to_slot + 1, fences);
    i = end;
  }
}

// Unmapped free range [first, last) of slots has pages now.
void Device::publish_mapped(Region* region, size_t first, size_t last, const std::vector<Fence>& fences) {
  Arena* arena = region->arena;
  Address low = region->address_of(first), high = region->address_of(last);
  Block* hint = region->last;
  while (hint->address >= high) hint = hint->prev;
  Block* rest = nullptr;
  Block* block = carve(hint, low, high, BlockState::kMapped, &rest);
  if (fences.size() == 1) {
    block->cls = static_cast<Class>(kFirstStream + fences[0].stream);
    block->seq = fences[0].seq;
  } else if (fences.size() > 1) {
    block->cls = kMixed;
    block->more = std::make_unique<std::vector<Fence>>(fences);
  }
  if (rest != nullptr) arena->index_free(rest);
  arena->add_free(block);
}

void Device::quarantine(PageId id) {
  std::erase(pages_.spare, id);
  pages_[id].state = PageState::kQuarantined;
  ++pages_.quarantined;
  ++stats_.quarantines;
}

// What the driver left in an unknown state is put aside for good.
void Device::publish_broken(const Remap::Broken& broken) {
  for (PageId id : broken.pages) quarantine(id);
  for (const auto& [region, slot, page, mapped] : broken.slots) {
    if (SleepingPage* asleep = sleeping_page(region, slot)) {
      asleep->left_over = page;  // taken away before the next try
      continue;
    }
    Slot& entry = region->slots[slot];
    if (entry.page != kNoPage) {
      record_page(VMM_EVENT_UNMAP, region, slot, entry.page, VMM_CAUSE_MOVE, 0);
      count_mapped(region->arena, -1);
    }
    // A page that is at home elsewhere must not be given back while it hangs here as well.
    entry.page = mapped && pages_[page].state != PageState::kQuarantined ? page : kNoPage;
    if (entry.page != kNoPage) ++pages_[page].stale_homes;
    entry.stale = true;
    Address low = region->address_of(slot), high = low + page_size_;
    Block* hint = region->last;
    while (hint->address >= high) hint = hint->prev;
    Block* rest = nullptr;
    Block* hole = carve(hint, low, high, BlockState::kStale, &rest);
    if (rest != nullptr) {
      region->arena->add_free(rest);
    } else if (hole->next != nullptr) {
      region->arena->update_seam(hole->next);
    }
  }
}

// Old mappings whose fences are done are taken away; their addresses can be used again.
void Device::reap() {
  size_t kept = 0;
  for (size_t i = 0; i < stale_.size(); ++i) {
    StaleRange& range = stale_[i];
    bool done = true;
    for (const Fence& fence : range.fences) {
      if (timelines_.known_done(fence)) continue;
      timelines_.cover(fence);
      done = false;
    }
    Region* region = range.block->region;
    uint64_t size = range.count * page_size_, unmapped = 0;
    if (!done || remap_.unmap(region->address_of(range.slot), size, &unmapped) != VMM_OK) {
      if (unmapped == 0) {
        if (kept != i) stale_[kept] = std::move(range);
        ++kept;
        continue;
      }
      // Half of it is gone and half is in doubt: never used again.
      stats_.quarantines += range.count;
    }
    for (size_t k = 0; k < range.count; ++k) {
      Slot& slot = region->slots[range.slot + k];
      --pages_[slot.page].stale_homes;
      slot.page = kNoPage;
      slot.stale = unmapped != size;
    }
    if (unmapped != size) continue;
    range.block->state = BlockState::kUnmapped;
    region->arena->add_free(range.block);
  }
  stale_.resize(kept);
}

}  // namespace vmm

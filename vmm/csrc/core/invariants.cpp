// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
//
// What must hold between any two calls. Tests run this after every call; users may with check:2.

#include <set>
#include <string>

#include "core/device.h"
#include "core/sentences.h"

namespace vmm {
namespace {

vmm_status broken(const std::string& what, uint64_t at) {
  char text[32];
  std::snprintf(text, sizeof text, "0x%llx", static_cast<unsigned long long>(at));
  return fail(VMM_INVALID, "invariant: " + what + " at " + text);
}

}  // namespace

vmm_status Device::check() {
  std::lock_guard guard(lock_);
  return check_locked();
}

vmm_status Device::check_locked() {
  uint64_t live_blocks = 0, live_bytes = 0, requested = 0, mapped = 0;
  std::vector<uint32_t> homes(pages_.pages.size(), 0), old_homes(pages_.pages.size(), 0);
  std::set<const Block*> stale_blocks;
  for (const StaleRange& range : stale_) stale_blocks.insert(range.block);

  for (const auto& arena : arenas_) {
    uint64_t arena_mapped = 0, seams = 0, seen_seams = 0;
    std::vector<uint64_t> counts(arena->classes.size(), 0), bytes(arena->classes.size(), 0);
    uint64_t unmapped_count = 0;
    for (const auto& region : arena->regions) {
      Address at = region->base;
      const Block* prev = nullptr;
      for (const Block* block = region->first; block != nullptr; prev = block, block = block->next) {
        if (block->address != at || block->prev != prev || block->region != region.get()) {
          return broken("blocks do not tile their range", at);
        }
        if (block->size == 0 || block->size % kUnit != 0)
          return broken("a block has a size that is no multiple of 512", at);
        at = block->end();
        size_t first = region->slot_of(block->address), last = region->slot_of(block->end() - 1);
        bool whole =
            (block->address - region->base) % page_size_ == 0 && (block->end() - region->base) % page_size_ == 0;
        if ((block->state == BlockState::kUnmapped || block->state == BlockState::kStale) && !whole) {
          return broken("an unmapped block does not begin and end at a page", block->address);
        }
        for (size_t slot = first; slot <= last; ++slot) {
          const Slot& entry = region->slots[slot];
          bool has_page = entry.page != kNoPage && !entry.stale;
          bool wants_page = block->state == BlockState::kActive || block->state == BlockState::kMapped;
          if (arena->asleep && wants_page) wants_page = has_page;
          if (has_page != wants_page) return broken("a block and its pages disagree", region->address_of(slot));
          if (block->state == BlockState::kUnmapped && entry.stale)
            return broken("a stale page may be used", region->address_of(slot));
          if (block->state == BlockState::kStale && !entry.stale)
            return broken("a stale block over a page that is not", block->address);
        }
        if (block->state == BlockState::kActive) {
          if (live_.find(block->address) != block) return broken("a live block is not in the table", block->address);
          ++live_blocks;
          live_bytes += block->size;
          requested += block->requested;
        }
        bool seam = block->state == BlockState::kUnmapped ||
                    (block->state == BlockState::kMapped && prev != nullptr && prev->is_free());
        if (seam != block->in_seams) return broken("a block is wrongly in or out of the list of seams", block->address);
        seams += seam;
        if (prev != nullptr && prev->state == block->state) {
          bool same = block->state == BlockState::kUnmapped ||
                      (block->state == BlockState::kMapped && prev->cls == block->cls && block->cls != kMixed);
          if (same) return broken("two free neighbors were not merged", block->address);
        }
        if (block->state == BlockState::kMapped) {
          if (block->cls >= counts.size()) return broken("a free block has no index", block->address);
          ++counts[block->cls];
          bytes[block->cls] += block->size;
        }
        unmapped_count += block->state == BlockState::kUnmapped;
      }
      if (at != region->end() || region->last != prev) return broken("blocks do not reach the end of their range", at);
      for (size_t slot = 0; slot < region->slots.size(); ++slot) {
        const Slot& entry = region->slots[slot];
        if (entry.page == kNoPage) continue;
        if (static_cast<size_t>(entry.page) >= homes.size())
          return broken("a page that does not exist", region->address_of(slot));
        if (entry.stale) {
          ++old_homes[static_cast<size_t>(entry.page)];
          continue;
        }
        ++homes[static_cast<size_t>(entry.page)];
        ++arena_mapped;
        const Page& page = pages_[entry.page];
        if (page.home != region.get() || page.slot != slot || page.state != PageState::kMapped) {
          return broken("a page does not know its home", region->address_of(slot));
        }
      }
    }
    for (const Block* block = arena->seams; block != nullptr; block = block->seam_next) ++seen_seams;
    if (seams != seen_seams) return broken("the list of seams has another length than there are seams", arena->id);
    for (size_t cls = 0; cls < counts.size(); ++cls) {
      uint64_t count = arena->classes[cls] ? arena->classes[cls]->count() : 0;
      uint64_t sum = arena->classes[cls] ? arena->classes[cls]->bytes() : 0;
      if (count != counts[cls] || sum != bytes[cls])
        return broken("an index of free blocks does not match the blocks", cls);
      uint64_t listed = 0;
      const Block* before = nullptr;
      bool ordered = true;
      if (arena->classes[cls]) {
        arena->classes[cls]->each_from(0, [&](Block* block) {
          ordered = ordered && block->state == BlockState::kMapped && block->cls == cls &&
                    (before == nullptr || before->size < block->size ||
                     (before->size == block->size && (block->size < 64 * kUnit || before->address < block->address)));
          before = block;
          ++listed;
          return true;
        });
      }
      if (listed != count || !ordered) return broken("an index of free blocks is out of order", cls);
    }
    if (unmapped_count != arena->unmapped.count())
      return broken("the index of unmapped blocks does not match", arena->id);
    if (arena_mapped != arena->mapped_pages) return broken("an arena miscounts its pages", arena->id);
    mapped += arena_mapped;
  }

  uint64_t spare = 0, quarantined = 0, created = 0;
  for (size_t i = 0; i < pages_.pages.size(); ++i) {
    const Page& page = pages_.pages[i];
    if (page.state == PageState::kGone) {
      if (homes[i] != 0 || old_homes[i] != 0) return broken("a page that is gone is still mapped", i);
      continue;
    }
    ++created;
    spare += page.state == PageState::kSpare;
    quarantined += page.state == PageState::kQuarantined;
    if (homes[i] != (page.state == PageState::kMapped ? 1u : 0u)) return broken("a page has not exactly one home", i);
    if (old_homes[i] != page.stale_homes && page.state != PageState::kQuarantined)
      return broken("a page miscounts its old homes", i);
  }
  if (spare != pages_.spare.size()) return broken("the list of spare pages does not match", spare);
  if (created != pages_.created || quarantined != pages_.quarantined || mapped != pages_.mapped) {
    return broken("created, mapped and quarantined pages do not add up", created);
  }
  if (created != mapped + spare + quarantined) return broken("a page is lost", created);
  if (live_blocks != live_.size() || live_blocks != stats_.allocation.current())
    return broken("live blocks are miscounted", live_blocks);
  if (live_bytes != stats_.allocated_bytes.current() || requested != stats_.requested_bytes.current()) {
    return broken("live bytes are miscounted", live_bytes);
  }
  if (stats_.pages.current != pages_.created) return broken("reserved bytes are miscounted", reserved());
  return VMM_OK;
}

}  // namespace vmm

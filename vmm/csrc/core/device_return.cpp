// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
//
// Returning memory, gathering it, and putting pools to sleep.

#include <algorithm>

#include "core/device.h"
#include "core/sentences.h"

namespace vmm {

vmm_status Device::trim(uint64_t bytes, uint64_t* released) {
  *released = 0;
  std::lock_guard guard(lock_);
  timelines_.cover_all();
  timelines_.poll();
  reap();
  uint64_t count = bytes / page_size_ + (bytes % page_size_ != 0);
  uint64_t done = release_spare(count);
  if (done < count) {
    uint64_t freed = 0;
    vmm_status status = to_spare(count - done, &freed, VMM_CAUSE_CREATE, {});
    done += release_spare(count - done);
    *released = done * page_size_;
    if (status != VMM_OK) return finish(status);
    for (const auto& arena : arenas_) arena->shrink();
  }
  *released = done * page_size_;
  return finish(VMM_OK);
}

vmm_status Device::compact(uint64_t target, bool release, bool sync, uint64_t* moved) {
  *moved = 0;
  std::unique_lock guard(lock_);
  if (sync) {
    if (vmm_status status = driver_->device_sync(id_); status != VMM_OK) {
      return finish(driver_failed(status, "synchronizing the device failed"));
    }
    ++timelines_.syncs;
    timelines_.all_done();
    record(VMM_EVENT_SYNC, 0, 0, 0, 0, 0);
  }
  timelines_.cover_all();
  timelines_.poll();
  reap();
  if (release) {
    guard.unlock();
    return trim(UINT64_MAX, moved);
  }
  if (pools_[0].asleep) return finish(fail(VMM_INVALID, "pool: the default pool is asleep"));
  Arena* arena = arena_for(pools_[0], 0, UINT64_MAX);
  settle(arena);
  uint64_t pages = stealable_pages(0, {Donors::kOfPool, 0}) + pages_.spare.size();
  uint64_t size = target == 0 ? pages * page_size_ : (target + kUnit - 1) / kUnit * kUnit;
  uint64_t largest = 0;
  for (const auto& index : arena->classes) largest = std::max(largest, index ? index->largest() : 0);
  if (size == 0 || largest >= size) return finish(VMM_OK);
  Place place = find_place(arena, size, 0, true);
  if (place.region == nullptr) return finish(VMM_OUT_OF_MEMORY);
  uint64_t before = stats_.steals();
  vmm_status status = prepare(arena, &place, 0, false);
  *moved = (stats_.steals() - before) * page_size_;
  if (status == VMM_OUT_OF_MEMORY) {
    fail(status, "target: " + bytes_text(size) + " cannot be gathered; " + bytes_text(pages * page_size_) +
                     " are in free pages that may move");
  }
  return finish(status);
}

vmm_status Device::pool_sleep(uint32_t id, bool keep, uint64_t* released) {
  *released = 0;
  std::lock_guard guard(lock_);
  if (id >= pools_.size() || !pools_[id].exists) {
    return fail(VMM_INVALID, "pool: there is no pool " + std::to_string(id));
  }
  Pool& pool = pools_[id];
  if (pool.asleep) return fail(VMM_INVALID, "pool: '" + pool.name + "' is asleep already");
  std::vector<Arena*> arenas;
  for (Arena* arena : {pool.small, pool.large}) {
    if (arena != nullptr) arenas.push_back(arena);
  }
  for (Arena* arena : arenas) {
    for (const auto& region : arena->regions) {
      for (const Slot& slot : region->slots) {
        if (slot.page != kNoPage && !slot.stale && pages_[slot.page].pinned()) {
          return fail(VMM_INVALID, "pool: '" + pool.name + "' holds pinned pages and cannot sleep");
        }
      }
    }
  }
  if (vmm_status status = driver_->device_sync(id_); status != VMM_OK) {
    return driver_failed(status, "synchronizing the device failed");
  }
  ++timelines_.syncs;
  timelines_.all_done();
  record(VMM_EVENT_SYNC, 0, 0, 0, 0, 0);
  reap();

  // Pages that hold nothing do not come back.
  uint64_t idle = 0;
  if (vmm_status status = to_spare(UINT64_MAX, &idle, VMM_CAUSE_SLEEP, {Donors::kOwn, id}); status != VMM_OK) {
    return finish(status);
  }

  // First everything that may fail for want of memory, then what changes something.
  std::vector<SleepingArena> sleeping;
  std::vector<Move> moves;
  for (Arena* arena : arenas) {
    SleepingArena one{arena, {}};
    for (const auto& region : arena->regions) {
      for (size_t slot = 0; slot < region->slots.size(); ++slot) {
        const Slot& entry = region->slots[slot];
        if (entry.page == kNoPage || entry.stale) continue;
        SleepingPage page{region.get(), slot, {}, kNoPage};
        if (keep) {
          try {
            page.content.resize(page_size_);
          } catch (const std::bad_alloc&) {
            return fail(VMM_OUT_OF_MEMORY, "keep: no host memory for the content of pool '" + pool.name + "'");
          }
          vmm_status status = driver_->copy_out(id_, page.content.data(), region->address_of(slot), page_size_);
          if (status != VMM_OK) return driver_failed(status, "a copy failed");
        }
        one.pages.push_back(std::move(page));
        Move move;
        move.page = entry.page;
        move.from = region.get();
        move.from_slot = slot;
        move.cause = VMM_CAUSE_SLEEP;
        moves.push_back(move);
      }
    }
    sleeping.push_back(std::move(one));
  }
  Remap::Broken broken;
  if (vmm_status status = remap_.run(moves, &broken); status != VMM_OK) {
    status = driver_failed(status, "unmapping pool '" + pool.name + "' failed" +
                                       (broken.slots.empty() ? " and was undone"
                                        : keep               ? "; it is asleep now and can be woken"
                                                             : "; it is asleep now and part of its content is lost"));
    if (!broken.slots.empty()) publish_half_asleep(&sleeping, broken);
    return finish(status);
  }
  publish_asleep(moves);
  pool.asleep = true;
  for (SleepingArena& one : sleeping) {
    one.arena->asleep = true;
    sleeping_.push_back(std::move(one));
  }
  *released = release_spare(moves.size() + idle) * page_size_;
  record(VMM_EVENT_SLEEP, 0, moves.size() * page_size_, 0, 0, id);
  return finish(VMM_OK);
}

// Pages under blocks that keep their state become spare.
void Device::publish_asleep(const std::vector<Move>& moves) {
  for (const Move& move : moves) {
    record_page(VMM_EVENT_UNMAP, move.from, move.from_slot, move.page, VMM_CAUSE_SLEEP, 0);
    move.from->slots[move.from_slot].page = kNoPage;
    pages_[move.page].state = PageState::kSpare;
    pages_[move.page].home = nullptr;
    pages_.spare.push_back(move.page);
    count_mapped(move.from->arena, -1);
  }
}

// Some pages could be neither taken away nor put back: only a wake can bring them under the blocks again.
// The others stay where they are meanwhile.
void Device::publish_half_asleep(std::vector<SleepingArena>* arenas, const Remap::Broken& broken) {
  for (SleepingArena& one : *arenas) {
    std::vector<SleepingPage> gone;
    for (SleepingPage& page : one.pages) {
      auto lost = std::find_if(broken.slots.begin(), broken.slots.end(), [&](const Remap::Broken::Place& place) {
        return place.region == page.region && place.slot == page.slot;
      });
      if (lost == broken.slots.end()) continue;
      record_page(VMM_EVENT_UNMAP, page.region, page.slot, lost->page, VMM_CAUSE_SLEEP, 0);
      page.region->slots[page.slot].page = kNoPage;
      count_mapped(one.arena, -1);
      quarantine(lost->page);
      if (lost->mapped) page.left_over = lost->page;
      gone.push_back(std::move(page));
    }
    one.pages = std::move(gone);
    one.arena->asleep = true;
    pools_[one.arena->pool].asleep = true;
    sleeping_.push_back(std::move(one));
  }
}

// The pages that an arena kept because it fell asleep only half become spare.
void Device::drain_asleep(Arena* arena) {
  auto one = std::find_if(sleeping_.begin(), sleeping_.end(), [&](const auto& it) { return it.arena == arena; });
  for (const auto& region : arena->regions) {
    for (size_t slot = 0; slot < region->slots.size(); ++slot) {
      PageId id = region->slots[slot].page;
      if (id == kNoPage || region->slots[slot].stale) continue;
      bool gone = driver_->unmap(id_, region->address_of(slot), page_size_) == VMM_OK;
      Move move;
      move.page = id;
      move.from = region.get();
      move.from_slot = slot;
      publish_asleep({move});
      if (gone) continue;
      quarantine(id);
      one->pages.push_back({region.get(), slot, {}, id});
    }
  }
}

Device::SleepingPage* Device::sleeping_page(const Region* region, size_t slot) {
  for (SleepingArena& one : sleeping_) {
    if (one.arena != region->arena) continue;
    for (SleepingPage& page : one.pages) {
      if (page.region == region && page.slot == slot) return &page;
    }
  }
  return nullptr;
}

// All pages of a sleeping arena come back, or none.
vmm_status Device::wake_arena(Arena* arena) {
  auto found = std::find_if(sleeping_.begin(), sleeping_.end(), [&](const auto& one) { return one.arena == arena; });
  if (found == sleeping_.end()) return VMM_OK;
  size_t need = found->pages.size();
  vmm_status status = VMM_OK;
  for (SleepingPage& page : found->pages) {
    if (page.left_over == kNoPage) continue;
    status = driver_->unmap(id_, page.region->address_of(page.slot), page_size_);
    if (status != VMM_OK) return status;
    // Nothing about that page is in doubt any more.
    pages_[page.left_over].state = PageState::kSpare;
    pages_.spare.push_back(page.left_over);
    --pages_.quarantined;
    page.left_over = kNoPage;
  }
  std::vector<Move> moves;
  auto missing = [&] {
    size_t have = pages_.spare.size() + moves.size();
    return have < need ? need - have : 0;
  };
  create_pages(missing(), hard_limit(), &status);
  // Pools that share give what they do not need.
  ++plan_;
  if (missing() > 0) steal_pages({Donors::kSharing}, nullptr, missing(), 0, true, &moves);
  if (status != VMM_OK) return status;
  if (missing() > 0) return VMM_OUT_OF_MEMORY;
  size_t from_spare = need - moves.size();
  for (size_t i = 0; i < from_spare; ++i) {
    Move move;
    move.page = pages_.spare[pages_.spare.size() - 1 - i];
    moves.push_back(move);
  }
  for (size_t i = 0; i < need; ++i) {
    moves[i].to = found->pages[i].region;
    moves[i].to_slot = found->pages[i].slot;
    moves[i].cause = VMM_CAUSE_SLEEP;
  }
  Remap::Broken broken;
  status = remap_.run(moves, &broken);
  if (status != VMM_OK) {
    publish_broken(broken);
    return status;
  }
  publish_woken(moves);
  for (const SleepingPage& page : found->pages) {
    if (page.content.empty()) continue;
    status = driver_->copy_in(id_, page.region->address_of(page.slot), page.content.data(), page_size_);
    if (status == VMM_OK) continue;
    // Nothing is lost as long as it goes back to sleep.
    for (Move& move : moves) {
      move.from = move.to;
      move.from_slot = move.to_slot;
      move.to = nullptr;
    }
    if (remap_.run(moves, &broken) == VMM_OK) {
      publish_asleep(moves);
      return status;
    }
    // It does not: what could not be put back counts as gone, all others are awake with the wrong content.
    for (const auto& [region, slot, id, mapped] : broken.slots) {
      record_page(VMM_EVENT_UNMAP, region, slot, id, VMM_CAUSE_SLEEP, 0);
      region->slots[slot].page = kNoPage;
      count_mapped(region->arena, -1);
      quarantine(id);
      sleeping_page(region, slot)->left_over = mapped ? id : kNoPage;
    }
    std::erase_if(found->pages, [](const SleepingPage& page) { return page.region->slots[page.slot].page != kNoPage; });
    if (!found->pages.empty()) return status;
    break;
  }
  arena->asleep = false;
  sleeping_.erase(found);
  return status;
}

// Pages come back under blocks that kept their state.
void Device::publish_woken(const std::vector<Move>& moves) {
  std::vector<Move> sources = moves;
  for (Move& move : sources) move.to = nullptr;
  publish_moves(sources, 0);  // whoever gave pages loses them; all are spare now
  for (const Move& move : moves) {
    Page& page = pages_[move.page];
    pages_.spare.erase(std::find(pages_.spare.begin(), pages_.spare.end(), move.page));
    page.state = PageState::kMapped;
    page.home = move.to;
    page.slot = static_cast<uint32_t>(move.to_slot);
    move.to->slots[move.to_slot].page = move.page;
    count_mapped(move.to->arena, 1);
    record_page(VMM_EVENT_MAP, move.to, move.to_slot, move.page, move.cause, 0);
  }
}

vmm_status Device::pool_wake(uint32_t id) {
  std::lock_guard guard(lock_);
  if (id >= pools_.size() || !pools_[id].exists) {
    return fail(VMM_INVALID, "pool: there is no pool " + std::to_string(id));
  }
  Pool& pool = pools_[id];
  if (!pool.asleep) return fail(VMM_INVALID, "pool: '" + pool.name + "' is not asleep");
  timelines_.cover_all();
  timelines_.poll();
  reap();
  for (Arena* arena : {pool.small, pool.large}) {
    if (arena == nullptr || !arena->asleep) continue;
    uint64_t bytes = 0;
    for (const SleepingArena& one : sleeping_) bytes += one.arena == arena ? one.pages.size() * page_size_ : 0;
    vmm_status status = wake_arena(arena);
    if (status == VMM_OUT_OF_MEMORY) fail(status, oom_sentence(bytes, pool));
    if (status != VMM_OK && status != VMM_OUT_OF_MEMORY) {
      status = driver_failed(status, "waking pool '" + pool.name + "' failed" +
                                         (arena->asleep ? "; it sleeps on" : "; its content is lost"));
    }
    if (status != VMM_OK) {
      // With its last arena awake, there is nothing left that a second try could do.
      pool.asleep = (pool.small != nullptr && pool.small->asleep) || (pool.large != nullptr && pool.large->asleep);
      return finish(status);
    }
  }
  pool.asleep = false;
  record(VMM_EVENT_WAKE, 0, 0, 0, 0, id);
  return finish(VMM_OK);
}

void Device::close() {
  std::lock_guard guard(lock_);
  driver_->device_sync(id_);
  timelines_.destroy_events();
  for (const auto& arena : arenas_) {
    for (const auto& region : arena->regions) {
      for (size_t slot = 0; slot < region->slots.size(); ++slot) {
        if (region->slots[slot].page != kNoPage) driver_->unmap(id_, region->address_of(slot), page_size_);
      }
    }
  }
  for (const Page& page : pages_.pages) {
    if (page.state == PageState::kSpare || page.state == PageState::kMapped) {
      driver_->page_release(id_, page_size_, page.handle);
    }
  }
  for (const auto& arena : arenas_) {
    for (const auto& region : arena->regions) driver_->va_free(id_, region->base, region->reserved);
  }
}

}  // namespace vmm

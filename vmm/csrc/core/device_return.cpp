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
    vmm_status status = to_spare(count - done, &freed, VMM_CAUSE_CREATE);
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
  Arena* arena = arena_for(pools_[0], 0, UINT64_MAX);
  if (arena->asleep) return finish(fail(VMM_INVALID, "pool: the default pool is asleep"));
  settle(arena);
  uint64_t pages = stealable_pages(0) + pages_.spare.size();
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
  std::vector<Arena*> arenas;
  for (Arena* arena : {pool.small, pool.large}) {
    if (arena == nullptr) continue;
    if (arena->asleep) return fail(VMM_INVALID, "pool: '" + pool.name + "' is asleep already");
    arenas.push_back(arena);
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
  timelines_.all_done();
  reap();

  // First everything that may fail for want of memory, then what changes something.
  std::vector<SleepingArena> sleeping;
  std::vector<Move> moves;
  for (Arena* arena : arenas) {
    SleepingArena one{arena, {}};
    for (const auto& region : arena->regions) {
      for (size_t slot = 0; slot < region->slots.size(); ++slot) {
        const Slot& entry = region->slots[slot];
        if (entry.page == kNoPage || entry.stale) continue;
        SleepingPage page{region.get(), slot, {}};
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
    // Live memory that could not be mapped back is lost; there is nothing to hide that with.
    for (PageId page : broken.pages) pages_[page].state = PageState::kQuarantined, ++pages_.quarantined;
    for (const auto& [region, slot] : broken.slots) {
      region->slots[slot].page = kNoPage;
      region->slots[slot].stale = true;
      count_mapped(region->arena, -1);
    }
    return finish(
        driver_failed(status, "unmapping pool '" + pool.name + "' failed" +
                                  (broken.slots.empty() ? " and was undone" : "; part of its content is lost")));
  }
  for (const Move& move : moves) {
    record_page(VMM_EVENT_UNMAP, move.from, move.from_slot, move.page, move.cause, 0);
    move.from->slots[move.from_slot].page = kNoPage;
    pages_[move.page].state = PageState::kSpare;
    pages_[move.page].home = nullptr;
    pages_.spare.push_back(move.page);
    count_mapped(move.from->arena, -1);
  }
  for (SleepingArena& one : sleeping) {
    one.arena->asleep = true;
    sleeping_.push_back(std::move(one));
  }
  *released = release_spare(moves.size()) * page_size_;
  record(VMM_EVENT_SLEEP, 0, moves.size() * page_size_, 0, 0, id);
  return finish(VMM_OK);
}

// All pages of a sleeping arena come back, or none.
vmm_status Device::wake_arena(Arena* arena) {
  auto found = std::find_if(sleeping_.begin(), sleeping_.end(), [&](const auto& one) { return one.arena == arena; });
  if (found == sleeping_.end()) return VMM_OK;
  size_t need = found->pages.size();
  vmm_status status = VMM_OK;
  std::vector<Move> moves;
  auto missing = [&] {
    size_t have = pages_.spare.size() + moves.size();
    return have < need ? need - have : 0;
  };
  create_pages(missing(), hard_limit(), &status);
  // Others give what they do not need; the default pools decide who may.
  if (missing() > 0) steal_pages(nullptr, nullptr, missing(), 0, true, &moves);
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
    vmm_status copied = driver_->copy_in(id_, page.region->address_of(page.slot), page.content.data(), page_size_);
    if (copied != VMM_OK) status = copied;
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
  timelines_.poll();
  reap();
  bool slept = false;
  for (Arena* arena : {pool.small, pool.large}) {
    if (arena == nullptr || !arena->asleep) continue;
    slept = true;
    uint64_t bytes = 0;
    for (const SleepingArena& one : sleeping_) bytes += one.arena == arena ? one.pages.size() * page_size_ : 0;
    vmm_status status = wake_arena(arena);
    if (status == VMM_OUT_OF_MEMORY) fail(status, oom_sentence(bytes, pool));
    if (status == VMM_DRIVER || status == VMM_INVALID) {
      driver_failed(status, "waking pool '" + pool.name + "' failed");
    }
    if (status != VMM_OK) return finish(status);
  }
  if (!slept) return fail(VMM_INVALID, "pool: '" + pool.name + "' is not asleep");
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

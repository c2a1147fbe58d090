// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
//
// Physical pages: spare ones, new ones, those that go back, and who gets which.

#include <algorithm>

#include "core/device.h"
#include "core/sentences.h"

namespace vmm {

// Fills `moves` for every slot of the place that has no page, and for `extra` slots behind it.
vmm_status Device::obtain(Arena* arena, const Place& place, uint64_t extra, StreamIndex stream, bool may_create,
                          std::vector<Move>* moves) {
  const Pool& pool = pools_[arena->pool];
  ++plan_;
  if (pool.cap != 0) {
    // What would exceed the cap has to come from the pool itself.
    extra = 0;
    uint64_t after = pool_bytes(pool) / page_size_ + place.missing, most = pool.cap / page_size_;
    uint64_t over = after > most ? after - most : 0;
    if (steal_pages({Donors::kOwn, arena->pool}, &place, over, stream, false, moves) < over) {
      moves->clear();
      return VMM_OUT_OF_MEMORY;
    }
  }

  uint64_t need = place.missing + extra;
  uint64_t hard = hard_limit(),
           soft = config_->policy == Policy::kStealFirst ? 0 : std::min(soft_limit(place.size), hard);
  vmm_status status = VMM_OK;

  auto missing = [&] {
    uint64_t have = moves->size() + pages_.spare.size();
    return have < need ? need - have : 0;
  };
  if (may_create && missing() > 0) create_pages(missing(), soft, &status);
  if (missing() > 0) {
    need = place.missing;
    if (missing() > 0) steal_pages({Donors::kOfPool, arena->pool}, &place, missing(), stream, false, moves);
  }
  if (may_create && status == VMM_OK && missing() > 0) create_pages(missing(), hard, &status);
  if (missing() > 0) {
    moves->clear();
    return status == VMM_OK ? VMM_OUT_OF_MEMORY : driver_failed(status, "creating a page failed");
  }

  // Spare pages serve first, the last created on top.
  std::vector<Move> stolen = std::move(*moves);
  moves->clear();
  uint64_t from_spare = need - stolen.size();
  std::vector<PageId> fresh(pages_.spare.end() - static_cast<std::ptrdiff_t>(from_spare), pages_.spare.end());
  std::sort(fresh.begin(), fresh.end());
  for (PageId page : fresh) {
    Move move;
    move.page = page;
    move.cause = VMM_CAUSE_POOL;
    moves->push_back(move);
  }
  moves->insert(moves->end(), stolen.begin(), stolen.end());

  size_t slot = place.region->slot_of(place.at);
  for (size_t i = 0; i < moves->size(); ++slot) {
    if (slot >= place.region->slots.size()) {
      // Extra pages lie behind what is in use.
      arena->extend(place.region, page_size_);
    }
    if (place.region->slots[slot].page != kNoPage) continue;
    (*moves)[i].to = place.region;
    (*moves)[i++].to_slot = slot;
  }
  return VMM_OK;
}

// Creates up to `count` spare pages while no more than `limit` bytes are held. A failure is not one of the
// request as long as there is another way: `status` is set only when the device is lost.
uint64_t Device::create_pages(uint64_t count, uint64_t limit, vmm_status* status) {
  uint64_t done = 0;
  while (done < count && reserved() + page_size_ <= limit) {
    Handle handle = 0;
    vmm_status created = driver_->page_create(id_, page_size_, &handle);
    if (created != VMM_OK) {
      if (created != VMM_OUT_OF_MEMORY) *status = created;
      break;
    }
    pages_.add(handle);
    stats_.pages.add(1);
    ++done;
  }
  return done;
}

// Unmaps up to `count` free pages whose fences are done; they become spare. The cause says what the caller
// does with them next.
vmm_status Device::to_spare(uint64_t count, uint64_t* done, vmm_map_cause cause, Donors donors) {
  std::vector<Move> moves;
  ++plan_;
  steal_pages(donors, nullptr, count, 0, true, &moves);
  for (Move& move : moves) move.cause = cause;
  *done = moves.size();
  return moves.empty() ? VMM_OK : run_moves(&moves, 0);
}

// Gives up to `count` spare pages back to the driver.
uint64_t Device::release_spare(uint64_t count) {
  uint64_t done = 0;
  for (size_t i = pages_.spare.size(); i-- > 0 && done < count;) {
    Page& page = pages_[pages_.spare[i]];
    if (page.stale_homes > 0) continue;
    if (driver_->page_release(id_, page_size_, page.handle) != VMM_OK) continue;
    pages_.drop_spare(i);
    stats_.pages.sub(1);
    ++done;
  }
  return done;
}

uint64_t Device::stealable_pages(StreamIndex stream, Donors donors) {
  std::vector<Move> moves;
  ++plan_;
  return steal_pages(donors, nullptr, UINT64_MAX, stream, false, &moves);
}

void Device::count_mapped(Arena* arena, int64_t pages) {
  arena->mapped_pages = static_cast<uint64_t>(static_cast<int64_t>(arena->mapped_pages) + pages);
  pages_.mapped = static_cast<uint64_t>(static_cast<int64_t>(pages_.mapped) + pages);
  uint64_t amount = static_cast<uint64_t>(pages < 0 ? -pages : pages);
  if (pages < 0) {
    stats_.mapped.sub(arena->small, amount);
  } else {
    stats_.mapped.add(arena->small, amount);
  }
}

}  // namespace vmm

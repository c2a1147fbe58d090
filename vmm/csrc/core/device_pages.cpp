// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
//
// Getting physical pages: spare ones, new ones, and free ones stolen from where nobody needs them.
//
// A page can be stolen when every byte of it lies in free blocks and nothing pins it. If their fences are
// done, it moves: unmap, map. If not, it is mapped at its new address at once, with the stream waiting on the
// device where the fence is another stream's, and the old mapping goes when the fence is done (alias).

#include <algorithm>

#include "core/device.h"
#include "core/sentences.h"

namespace vmm {
namespace {

enum Reach { kClosed, kSameStream, kOtherStream, kNever };  // how a page may be taken, best first

}  // namespace

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

bool Device::may_steal_from(const Arena* from, Donors donors) const {
  if (from->asleep) return false;
  bool own = from->pool == donors.pool, sharing = pools_[from->pool].shared_pages;
  switch (donors.who) {
    case Donors::kAll: return true;
    case Donors::kSharing: return sharing;
    case Donors::kOfPool: return own || (sharing && pools_[donors.pool].shared_pages);
    case Donors::kOwn: return own;
  }
  return false;
}

// Adds up to `count` moves (without a destination) of pages that may be taken. With `only_done`, only those
// that nobody has to wait for. `place`, if there is one, keeps its own pages. A new plan begins with ++plan_.
uint64_t Device::steal_pages(Donors donors, const Place* place, uint64_t count, StreamIndex stream, bool only_done,
                             std::vector<Move>* moves) {
  uint64_t taken = 0;
  if (count == 0) return 0;
  Address keep_low = 0, keep_high = 0;
  if (place != nullptr) {
    keep_low = place->region->page_floor(place->at);
    keep_high = place->region->page_ceil(place->end());
  }

  // Nobody can wait for work that is only being captured.
  std::vector<int> capturing(timelines_.size(), -1);
  auto is_capturing = [&](StreamIndex index) {
    int& answer = capturing[index];
    if (answer < 0) answer = driver_->capturing(id_, timelines_.handle(index));
    return answer != 0;
  };
  auto may_wait_for = [&](Fence fence) {
    return timelines_.ordered(stream, fence) || timelines_.covered(fence) || !is_capturing(fence.stream);
  };

  // How the page that ends at `end` may be taken; it is covered by `block` and free blocks below it.
  auto reach_of = [&](Block* block, Address begin) {
    Reach reach = kClosed;
    for (Block* part = block;; part = part->prev) {
      if (part == nullptr || part->state != BlockState::kMapped) return kNever;
      part->each_fence([&](Fence fence) {
        if (timelines_.known_done(fence)) return;
        reach = std::max(reach, fence.stream == stream ? kSameStream : may_wait_for(fence) ? kOtherStream : kNever);
      });
      if (part->address <= begin) return reach;
    }
  };

  auto visit = [&](Block* block, Reach wanted) {
    Region* region = block->region;
    Address end = region->page_floor(block->end());
    Reach own = kClosed;
    block->each_fence([&](Fence fence) {
      if (!timelines_.known_done(fence)) own = std::max(own, fence.stream == stream ? kSameStream : kOtherStream);
    });
    if (own > wanted) return true;
    // Then only the lowest page can be of another kind: blocks below may share it.
    if (own < wanted) end = std::min(end, region->page_floor(block->address) + page_size_);
    // Pages that end inside this block, from the top.
    for (; end > block->address && end > region->base && taken < count; end -= page_size_) {
      Address begin = end - page_size_;
      size_t slot = region->slot_of(begin);
      Slot& entry = region->slots[slot];
      if (entry.page == kNoPage || entry.stale || entry.mark == plan_) continue;
      if (place != nullptr && region == place->region && begin < keep_high && end > keep_low) continue;
      if (pages_[entry.page].pinned()) continue;
      if (reach_of(block, begin) != wanted) continue;
      entry.mark = plan_;
      Move move;
      move.page = entry.page;
      move.from = region;
      move.from_slot = slot;
      move.from_block = block;
      move.alias = wanted != kClosed;
      move.cross_stream = wanted == kOtherStream;
      move.cause = move.alias ? VMM_CAUSE_ALIAS : VMM_CAUSE_MOVE;
      moves->push_back(move);
      ++taken;
    }
    return taken < count;
  };

  // What a free block is worth less for without its whole pages: the part of it that stays behind in pages
  // which others hold. Blocks that lose least of themselves give first.
  auto left_over = [&](Block* block) {
    Address low = block->region->page_ceil(block->address), high = block->region->page_floor(block->end());
    if (high <= low) return 1e9;
    return static_cast<double>(block->size - (high - low)) / static_cast<double>(high - low);
  };
  std::vector<std::pair<double, Block*>> victims;

  // While a stream is being captured, what it has freed still belongs to the graph: such pages stay where
  // they are.
  std::vector<Reach> order = {kClosed};
  if (!only_done && !is_capturing(stream)) {
    order.push_back(kSameStream);
    if (config_->cross_stream != CrossStream::kNever) order.push_back(kOtherStream);
  }
  for (Reach wanted : order) {
    for (const auto& from : arenas_) {
      if (taken >= count) return taken;
      if (!may_steal_from(from.get(), donors)) continue;
      victims.clear();
      for (const auto& index : from->classes) {
        if (!index) continue;
        index->each_from(page_size_, [&](Block* block) {
          victims.emplace_back(left_over(block), block);
          return true;
        });
      }
      std::stable_sort(victims.begin(), victims.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
      for (const auto& [cost, block] : victims) {
        if (!visit(block, wanted)) break;
      }
      // Pages that only several small blocks cover together.
      for (Block* seam = from->seams; seam != nullptr && taken < count; seam = seam->seam_next) {
        if (seam->state == BlockState::kMapped && seam->size < page_size_) visit(seam, wanted);
      }
    }
  }
  return taken;
}

// Carries the moves out, first making the stream wait for the pages that need it. Without aliases the host
// waits instead.
vmm_status Device::run_moves(std::vector<Move>* moves, StreamIndex stream) {
  vmm_status status = VMM_OK;
  for (Move& move : *moves) {
    if (!move.alias) continue;
    Address begin = move.from->address_of(move.from_slot);
    for (Block* part = move.from_block; part != nullptr && status == VMM_OK; part = part->prev) {
      part->each_fence([&](Fence fence) {
        if (status != VMM_OK || timelines_.known_done(fence)) return;
        if (!capabilities_.alias) {
          status = timelines_.sync(fence);
          ++timelines_.syncs;
          if (status == VMM_OK) record(VMM_EVENT_SYNC, 0, 0, 0, fence.stream, 0);
        } else if (fence.stream != stream && !timelines_.ordered(stream, fence)) {
          status = timelines_.wait(stream, fence);
          if (status == VMM_OK) record(VMM_EVENT_WAIT, begin, page_size_, fence.stream, stream, 0);
        } else {
          status = timelines_.cover(fence);
          if (status == VMM_NOT_READY) status = VMM_OK;  // capturing: covered when that is over
        }
      });
      if (part->address <= begin) break;
    }
    if (status == VMM_NOT_READY) return status;
    if (status != VMM_OK) return driver_failed(status, "waiting for pages that move failed");
    if (!capabilities_.alias) {
      move.alias = false;
      move.cause = VMM_CAUSE_MOVE;
    }
  }
  Remap::Broken broken;
  status = remap_.run(*moves, &broken);
  if (status == VMM_OK) {
    publish_moves(*moves, stream);
    return VMM_OK;
  }
  publish_broken(broken);
  return driver_failed(status, std::string("moving pages failed and was undone") +
                                   (broken.slots.empty() ? ""
                                                         : ", all but " + std::to_string(broken.slots.size()) +
                                                               " pages, which are never used again"));
}

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

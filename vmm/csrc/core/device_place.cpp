// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
//
// Where a request that no free block can serve will lie.
//
// A run of adjacent free blocks, mapped or not, of any stream, becomes one block once its missing pages are
// there and the stream waits for what it must. The candidate that misses fewest pages wins, then the one
// with fewest waits, the smaller run, the lower address. New address range at the end is always a candidate.

#include <algorithm>
#include <tuple>

#include "core/device.h"
#include "core/sentences.h"

namespace vmm {
namespace {

// From `block` down. Such a block stays where it is whatever happens to the free ones.
Block* last_not_free(Block* block) {
  while (block != nullptr && block->is_free()) block = block->prev;
  return block;
}

}  // namespace

// What [at, at + size) of the run lacks.
Place Device::place_in_run(const Run& run, Address at, uint64_t size, StreamIndex stream) const {
  Place place;
  place.region = run.first->region;
  place.at = at;
  place.size = size;
  place.run_size = run.size();
  place.anchor = last_not_free(run.first->prev);
  uint64_t page = page_size_;
  for (const Block* block = run.first; block != nullptr; block = block == run.last ? nullptr : block->next) {
    if (block->end() <= at) continue;
    if (block->address >= place.end()) break;
    if (block->state == BlockState::kUnmapped) {
      Address low = place.region->page_floor(std::max(at, block->address));
      Address high = place.region->page_ceil(std::min(place.end(), block->end()));
      place.missing += (high - low) / page;
      continue;
    }
    bool ordered = true;
    block->each_fence([&](Fence fence) { ordered = ordered && timelines_.ordered(stream, fence); });
    place.waits += ordered ? 0 : 1;
  }
  return place;
}

void Device::consider(Place* best, const Place& candidate) {
  auto key = [](const Place& p) { return std::tuple(p.missing, p.waits, p.run_size, p.at); };
  if (best->region == nullptr || key(candidate) < key(*best)) *best = candidate;
}

Place Device::place_at_end(Arena* arena, uint64_t size, StreamIndex stream, bool may_wait) const {
  Place place;
  for (const auto& region : arena->regions) {
    // The free blocks at the end of the range, as far down as they may be used.
    Run run;
    for (Block* block = region->last; block != nullptr && block->is_free(); block = block->prev) {
      bool ordered = true;
      block->each_fence([&](Fence fence) { ordered = ordered && timelines_.ordered(stream, fence); });
      if (!ordered && !may_wait) break;
      run.first = block;
    }
    run.last = run.first != nullptr ? region->last : nullptr;
    Address at = run.first != nullptr ? run.begin() : region->end();
    if (aligned(size)) at = region->page_ceil(at);
    uint64_t extend = at + size <= region->end() ? 0 : region->page_ceil(at + size) - region->end();
    if (region->used() + extend > region->reserved) continue;
    Place candidate;
    if (run.first != nullptr) {
      candidate = place_in_run(run, at, size, stream);
    } else {
      candidate.region = region.get();
      candidate.at = at;
      candidate.size = size;
      candidate.anchor = last_not_free(region->last);
    }
    candidate.extend = extend;
    candidate.missing += extend / page_size_;
    candidate.run_size += extend;
    consider(&place, candidate);
  }
  return place;
}

Place Device::find_place(Arena* arena, uint64_t size, StreamIndex stream, bool may_wait) {
  bool at_page = aligned(size);
  Place best;
  auto try_place = [&](const Place& place) {
    if (may_wait || place.waits == 0) consider(&best, place);
  };
  ++epoch_;
  for (Block* seam = arena->seams; seam != nullptr; seam = seam->seam_next) {
    if (seam->visit == epoch_) continue;
    Run run = Run::around(seam);
    for (Block* block = run.first;; block = block->next) {
      block->visit = epoch_;
      if (block == run.last) break;
    }
    if (run.size() < size) continue;
    Address low = at_page ? run.first->region->page_ceil(run.begin()) : run.begin();
    if (low + size > run.end()) continue;
    try_place(place_in_run(run, low, size, stream));
    Address high = run.end() - size;
    if (at_page) high = run.first->region->page_floor(high);
    if (high > low) try_place(place_in_run(run, high, size, stream));
  }
  if (may_wait) {
    // A single block of another stream, after a wait.
    for (Class cls = kMixed; cls < arena->classes.size(); ++cls) {
      if (!arena->classes[cls]) continue;
      Block* block = at_page ? best_aligned(*arena->classes[cls], size) : arena->classes[cls]->best(size);
      if (block == nullptr) continue;
      Place place = place_in_run({block, block}, start_in(block, size), size, stream);
      consider(&best, place);
    }
  }
  Place end = place_at_end(arena, size, stream, may_wait);
  if (end.region == nullptr && best.region == nullptr) {
    if (ensure_range(arena, size + page_size_) != VMM_OK) return {};
    end = place_at_end(arena, size, stream, may_wait);
  }
  if (end.region != nullptr) consider(&best, end);
  return best;
}

vmm_status Device::ensure_range(Arena* arena, uint64_t bytes) {
  double factor = arena->small ? config_->va_factor_small : config_->va_factor;
  uint64_t wanted = static_cast<uint64_t>(factor * static_cast<double>(total_));
  // Programs make many private pools; a range that is used up gets another behind it.
  if (arena->pool != 0) wanted /= 4;
  if (uint64_t cap = pools_[arena->pool].cap; cap != 0) {
    wanted = std::min(wanted, static_cast<uint64_t>(factor * static_cast<double>(cap)));
  }
  auto whole = [&](uint64_t range) { return (std::max(bytes, range) + page_size_ - 1) / page_size_ * page_size_; };
  uint64_t size = whole(wanted);
  Address base = 0;
  vmm_status status = driver_->va_reserve(id_, size, &base);
  while (status != VMM_OK && status != VMM_DEVICE_LOST && size > whole(0)) {
    size = whole(size / 8);  // less will do
    status = driver_->va_reserve(id_, size, &base);
  }
  if (status != VMM_OK) return fail(status, "no address range of " + bytes_text(size) + " could be reserved");
  auto region = std::make_unique<Region>();
  region->arena = arena;
  region->base = base;
  region->reserved = size;
  region->page_size = page_size_;
  arena->regions.push_back(std::move(region));
  return VMM_OK;
}

// The free block of the run that holds `address`.
Block* Device::block_at(const Place& place, Address address) const {
  Block* block = place.anchor != nullptr ? place.anchor->next : place.region->first;
  while (block != nullptr && block->end() <= address) block = block->next;
  return block;
}

vmm_status Device::prepare(Arena* arena, Place* place, StreamIndex stream, bool may_create) {
  if (place->extend > 0) arena->extend(place->region, place->extend);
  uint64_t extra = 0;
  if (place->extend > 0 && may_create && config_->policy == Policy::kCreateFirst) {
    // Growing in larger steps costs fewer calls; never beyond the soft limit.
    uint64_t after = reserved() + place->missing * page_size_;
    uint64_t soft = std::min(soft_limit(place->size), hard_limit());
    uint64_t room = after < soft ? (soft - after) / page_size_ : 0;
    uint64_t wanted = config_->grow / page_size_;
    if (wanted > place->missing) extra = std::min(room, wanted - place->missing);
    uint64_t left = (place->region->reserved - place->region->used()) / page_size_;
    extra = std::min(extra, left);
  }
  std::vector<Move> moves;
  vmm_status status = VMM_OK;
  if (place->missing > 0) status = obtain(arena, *place, extra, stream, may_create, &moves);

  // The device makes the stream wait for what lies in the place already.
  if (status == VMM_OK && place->waits > 0) {
    for (Block* block = block_at(*place, place->at); block != nullptr && block->address < place->end();
         block = block->next) {
      if (block->state != BlockState::kMapped) continue;
      block->each_fence([&](Fence fence) {
        if (status == VMM_OK && !timelines_.ordered(stream, fence)) {
          status = timelines_.wait(stream, fence);
          if (status == VMM_OK) {
            ++stats_.cross_stream;
            record(VMM_EVENT_WAIT, block->address, block->size, fence.stream, stream, arena->pool);
          } else if (status != VMM_NOT_READY) {
            status = driver_failed(status, "making a stream wait failed");
          }
        }
      });
    }
  }
  if (status == VMM_OK && !moves.empty()) status = run_moves(&moves, stream);
  if (status != VMM_OK) {
    arena->shrink();
    return status == VMM_NOT_READY ? VMM_OUT_OF_MEMORY : status;
  }
  return VMM_OK;
}

// Makes one active block of the prepared place.
Block* Device::take_place(Arena* arena, const Place& place, StreamIndex stream) {
  Block* whole = nullptr;
  Block* low = nullptr;
  Block* high = nullptr;
  for (Block* block = block_at(place, place.at); block != nullptr && block->address < place.end();) {
    arena->remove_free(block);
    if (block->address < place.at) {
      low = block;
      block = arena->split(low, place.at - low->address);
    }
    if (block->end() > place.end()) high = arena->split(block, place.end() - block->address);
    Block* next = block->next;
    block->state = BlockState::kActive;
    block->cls = static_cast<Class>(kFirstStream + stream);
    block->more.reset();
    if (whole == nullptr) {
      whole = block;
    } else {
      arena->append(whole, block);
    }
    block = next;
  }
  if (low != nullptr) arena->add_free(low);
  if (high != nullptr) {
    arena->add_free(high);
  } else {
    arena->update_seam(whole->next);
  }
  return whole;
}

}  // namespace vmm

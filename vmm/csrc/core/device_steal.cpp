// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
//
// Stealing: free pages go where somebody needs them.
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

}  // namespace vmm

// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
//
// Questions about the future: would it fit, and making it fit ahead of time.

#include <algorithm>
#include <set>

#include "core/device.h"
#include "core/sentences.h"

namespace vmm {

// Places the sizes, in their order and by best fit as requests would be, into a copy of the free blocks that the stream
// may use; what does not fit there needs pages, which may be spare, new or stolen. Conservative: a page that a placed
// request touches counts as taken.
vmm_status Device::plan(const uint64_t* sizes, size_t count, Stream stream, vmm_fit* answer) {
  std::lock_guard guard(lock_);
  StreamIndex user = timelines_.index_of(stream);
  timelines_.cover_all();
  timelines_.poll();
  std::vector<uint64_t> wanted[2];
  for (size_t i = 0; i < count; ++i) {
    if (sizes[i] == 0) continue;
    if (sizes[i] > uint64_t{1} << 48) {
      *answer = VMM_DOES_NOT_FIT;
      return VMM_OK;
    }
    uint64_t size = (sizes[i] + kUnit - 1) / kUnit * kUnit;
    wanted[size <= config_->small_max].push_back(size);
  }
  uint64_t need_pages = 0, touched_pages = 0;
  for (bool small : {false, true}) {
    std::multiset<uint64_t> free;
    Arena* arena = small ? pools_[0].small : pools_[0].large;
    if (arena != nullptr) {
      for (const auto& index : arena->classes) {
        if (!index) continue;
        index->each_from(kUnit, [&](Block* block) {
          bool ordered = true;
          block->each_fence([&](Fence fence) { ordered = ordered && timelines_.ordered(user, fence); });
          if (ordered) free.insert(block->size);
          return true;
        });
      }
    }
    auto& list = wanted[small];
    uint64_t left_over = 0;
    for (uint64_t size : list) {
      auto place = free.lower_bound(size);
      if (place == free.end()) {
        left_over += size;
        continue;
      }
      uint64_t rest = *place - size;
      free.erase(place);
      if (rest > 0) free.insert(rest);
      touched_pages += (size + page_size_ - 1) / page_size_ + 1;
    }
    need_pages += (left_over + page_size_ - 1) / page_size_;
  }
  if (need_pages == 0) {
    *answer = VMM_FITS;
    return VMM_OK;
  }
  uint64_t hard = hard_limit();
  uint64_t fresh = pages_.spare.size() + (hard > reserved() ? (hard - reserved()) / page_size_ : 0);
  // Pools that share with nobody give idle pages before a request fails.
  auto idle = [&](Donors donors) {
    std::vector<Move> moves;
    return steal_pages(donors, nullptr, UINT64_MAX, user, true, &moves);
  };
  uint64_t stealable =
      stealable_pages(user, {Donors::kOfPool, 0}) + idle({Donors::kAll, 0}) - idle({Donors::kOfPool, 0});
  uint64_t stolen = stealable > touched_pages ? stealable - touched_pages : 0;
  *answer = need_pages <= fresh ? VMM_FITS : need_pages <= fresh + stolen ? VMM_FITS_AFTER_STEAL : VMM_DOES_NOT_FIT;
  return VMM_OK;
}

// Takes the memory and gives it back: the mapping stays. Neither counted nor recorded as allocations.
vmm_status Device::prefetch(const uint64_t* sizes, size_t count, Stream stream) {
  std::lock_guard guard(lock_);
  StreamIndex user = timelines_.index_of(stream);
  vmm_status status = VMM_OK;
  std::vector<Block*> taken;
  for (size_t i = 0; i < count && status == VMM_OK; ++i) {
    if (sizes[i] == 0) continue;
    if (sizes[i] > uint64_t{1} << 48) {
      status = fail(VMM_OUT_OF_MEMORY, "sizes: a request of " + bytes_text(sizes[i]) + " is larger than any device");
      break;
    }
    vmm_request request{};
    request.size = sizes[i];
    request.stream = stream;
    Arena* arena = nullptr;
    Block* block = nullptr;
    status = allocate_locked(request, user, &arena, &block);
    if (status == VMM_OK) taken.push_back(block);
  }
  for (Block* block : taken) {
    block->state = BlockState::kMapped;
    block->seq = timelines_.mark(user).seq;
    block->region->arena->add_free(block);
  }
  return finish(status);
}

}  // namespace vmm

// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
//
// Requests and frees: the fast path, and the ladder of slower ones.

#include <algorithm>

#include "core/device.h"
#include "core/sentences.h"
#include "core/tags.h"

namespace vmm {
namespace {

uint64_t round_up(uint64_t value, uint64_t unit) { return (value + unit - 1) / unit * unit; }

Class class_of(StreamIndex stream) { return static_cast<Class>(kFirstStream + stream); }

bool better(const Block* a, const Block* b) {
  return b == nullptr || a->size < b->size || (a->size == b->size && a->address < b->address);
}

}  // namespace

vmm_status Device::allocate(const vmm_request& request, void** out) {
  *out = nullptr;
  if (request.size == 0) return VMM_OK;
  if (request.size > uint64_t{1} << 48) {
    return fail(VMM_OUT_OF_MEMORY, "size: a request of " + bytes_text(request.size) + " is larger than any device");
  }
  std::lock_guard guard(lock_);
  StreamIndex stream = timelines_.index_of(request.stream);
  Arena* arena = nullptr;
  Block* block = nullptr;
  if (request.pool == 0) {
    // The short way of nearly every request.
    uint64_t size = round_up(request.size, kUnit);
    arena = arena_for(pools_[0], 0, size);
    if (!pools_[0].asleep) block = fast(arena, size, stream);
  }
  bool slow_path = block == nullptr;
  if (slow_path) {
    vmm_status status = allocate_locked(request, stream, &arena, &block);
    if (status != VMM_OK) return finish(status);
  }
  try {
    publish_live(arena, block, request, stream);
  } catch (...) {  // the table of live blocks could not grow; nothing else has changed
    block->seq = timelines_.mark(stream).seq;
    block->state = BlockState::kMapped;
    arena->add_free(block);
    throw;
  }
  *out = reinterpret_cast<void*>(block->address);
  if (config_->check == 0) return VMM_OK;
  return config_->check == 2 || slow_path ? check_locked() : VMM_OK;
}

vmm_status Device::allocate_locked(const vmm_request& request, StreamIndex stream, Arena** arena, Block** out) {
  if (request.pool >= pools_.size() || !pools_[request.pool].exists) {
    return fail(VMM_INVALID, "pool: there is no pool " + std::to_string(request.pool));
  }
  uint64_t size = round_up(request.size, kUnit);
  if (pools_[request.pool].asleep) {
    return fail(VMM_INVALID, "pool: '" + pools_[request.pool].name + "' is asleep; wake it before allocating from it");
  }
  *arena = arena_for(pools_[request.pool], request.pool, size);
  *out = fast(*arena, size, stream);
  if (*out != nullptr) return VMM_OK;
  return slow(*arena, size, stream, out);
}

// The best fit among the blocks that the stream may use at once.
Block* Device::fast(Arena* arena, uint64_t size, StreamIndex stream) {
  Block* found = nullptr;
  for (Class cls : {class_of(stream), kDone}) {
    if (cls >= arena->classes.size() || !arena->classes[cls]) continue;
    Block* block = aligned(size) ? best_aligned(*arena->classes[cls], size) : arena->classes[cls]->best(size);
    if (block != nullptr && better(block, found)) found = block;
  }
  return found == nullptr ? nullptr : take(arena, found, start_in(found, size), size, stream);
}

// The best fit for a request that begins at a page: a block that begins well, or one with room to spare.
Block* Device::best_aligned(const FreeIndex& index, uint64_t size) const {
  Block* found = nullptr;
  int tries = 64;
  index.each_from(size, [&](Block* block) {
    if (start_in(block, size) + size <= block->end()) found = block;
    return found == nullptr && --tries > 0;
  });
  return found != nullptr ? found : index.best(size + page_size_ - kUnit);
}

// Cuts [at, at + size) out of a mapped free block.
Block* Device::take(Arena* arena, Block* block, Address at, uint64_t size, StreamIndex stream) {
  arena->remove_free(block);
  if (at != block->address) {
    Block* low = block;
    block = arena->split(low, at - low->address);
    block->state = BlockState::kActive;
    arena->add_free(low);
  }
  uint64_t rest = block->size - size;
  if (rest >= config_->split_min && rest > config_->whole_block_waste) {
    // The rest follows a live block and has the neighbor that it had: nothing to merge, no seam to update.
    Block* high = arena->split(block, size);
    high->state = BlockState::kMapped;  // the block itself is active already if its lower part was cut off
    block->state = BlockState::kActive;
    arena->index(high->cls).insert(high);
  } else {
    block->state = BlockState::kActive;
    if (block->next != nullptr) arena->update_seam(block->next);
  }
  block->cls = class_of(stream);
  block->more.reset();
  return block;
}

void Device::publish_live(Arena* arena, Block* block, const vmm_request& request, StreamIndex stream) {
  block->requested = request.size;
  block->tag = request.tag != 0 ? request.tag : thread_tag();
  block->stack = request.stack;
  live_.insert(block->address, block);
  ++arena->live;
  stats_.allocation.add(arena->small, 1);
  stats_.allocated_bytes.add(arena->small, block->size);
  stats_.requested_bytes.add(arena->small, request.size);
  if (stats_.allocated_bytes.current() > step_peak_) step_peak_ = stats_.allocated_bytes.current();
  if (recorder_->on() && request.size >= recorder_->min_size()) {
    record(VMM_EVENT_ALLOC, block->address, block->size, request.size, stream, arena->pool, block->tag, block->stack);
  }
}

vmm_status Device::deallocate(void* pointer) {
  if (pointer == nullptr) return VMM_OK;
  std::lock_guard guard(lock_);
  Block* block = live_.take(reinterpret_cast<Address>(pointer));
  if (block == nullptr) {
    char text[96];
    std::snprintf(text, sizeof text, "pointer: %p is not a live allocation of device %d", pointer, id_);
    return fail(VMM_INVALID, text);
  }
  // Both neighbors are read in a moment: fetch them while the counters are kept.
  __builtin_prefetch(block->prev);
  __builtin_prefetch(block->next);
  free_block(block);
  return config_->check == 2 ? finish(VMM_OK) : VMM_OK;
}

void Device::free_block(Block* block) {
  Arena* arena = block->region->arena;
  StreamIndex stream = static_cast<StreamIndex>(block->cls - kFirstStream);
  stats_.allocation.sub(arena->small, 1);
  stats_.allocated_bytes.sub(arena->small, block->size);
  stats_.requested_bytes.sub(arena->small, block->requested);
  if (recorder_->on() && block->requested >= recorder_->min_size()) {
    record(VMM_EVENT_FREE_REQUESTED, block->address, block->size, 0, stream, arena->pool, block->tag, block->stack);
    record(VMM_EVENT_FREE_COMPLETED, block->address, block->size, 0, stream, arena->pool, block->tag, block->stack);
  }
  block->seq = timelines_.mark(stream).seq;
  if (block->more) {
    // Other streams use it as well: their fences go with it.
    for (Fence& fence : *block->more) fence = timelines_.mark(fence.stream);
    block->more->push_back({stream, block->seq});
    block->cls = kMixed;
  }
  block->state = BlockState::kMapped;
  block->tag = block->stack = 0;
  arena->add_free(block);
  if (--arena->live == 0 && arena->pool != 0) {
    const Pool& pool = pools_[arena->pool];
    if (pool.released && pool.live() == 0) forget_pool(arena->pool);
  }
}

vmm_status Device::record_stream(void* pointer, Stream stream) {
  std::lock_guard guard(lock_);
  Block* block = live_.find(reinterpret_cast<Address>(pointer));
  if (block == nullptr) return fail(VMM_INVALID, "pointer: record_stream needs a live allocation");
  StreamIndex index = timelines_.index_of(stream);
  if (class_of(index) == block->cls) return VMM_OK;
  if (!block->more) block->more = std::make_unique<std::vector<Fence>>();
  for (const Fence& fence : *block->more) {
    if (fence.stream == index) return VMM_OK;
  }
  block->more->push_back({index, 0});
  block->more->reserve(block->more->size() + 1);  // a free adds one, and must not fail
  if (recorder_->on() && block->requested >= recorder_->min_size()) {
    record(VMM_EVENT_RECORD_STREAM, block->address, block->size, 0, index, block->region->arena->pool);
  }
  return VMM_OK;
}

vmm_status Device::slow(Arena* arena, uint64_t size, StreamIndex stream, Block** out) {
  settle(arena);
  if ((*out = fast(arena, size, stream)) != nullptr) return VMM_OK;
  if ((*out = take_other_stream(arena, size, stream)) != nullptr) return VMM_OK;

  // Every byte needs a page: nothing is reserved for what can never be served.
  if (size > std::max(hard_limit(), reserved())) {
    return fail(VMM_OUT_OF_MEMORY, oom_sentence(size, pools_[arena->pool]));
  }

  // First without waiting for other streams, if the pages for it may simply be created and memory is not scarce.
  bool scarce = limit_ != 0 && reserved() > limit_ / 4 * 3;
  bool may_wait =
      config_->cross_stream == CrossStream::kWait || (config_->cross_stream == CrossStream::kWaitAboveSoft && scarce);
  Place place = find_place(arena, size, stream, may_wait);
  bool roomy = config_->policy == Policy::kCreateFirst &&
               reserved() + place.missing * page_size_ <=
                   pages_.spare.size() * page_size_ + std::min(soft_limit(size), hard_limit());
  if ((!roomy || place.region == nullptr) && !may_wait && config_->cross_stream != CrossStream::kNever) {
    place = find_place(arena, size, stream, true);
  }
  vmm_status status = place.region == nullptr ? VMM_OUT_OF_MEMORY : prepare(arena, &place, stream, true);
  if (status == VMM_OUT_OF_MEMORY && place.waits > 0) {
    // A stream that is being captured can neither wait nor be waited for.
    place = find_place(arena, size, stream, false);
    if (place.region != nullptr) status = prepare(arena, &place, stream, true);
  }
  if (status == VMM_OUT_OF_MEMORY && pools_[arena->pool].cap == 0) {
    // Pools keep their free pages to themselves, but not while somebody runs out of memory.
    timelines_.cover_all();
    timelines_.poll();
    uint64_t given = 0;
    status = to_spare(size / page_size_ + 2, &given, VMM_CAUSE_POOL, {Donors::kAll, 0});
    if (status == VMM_OK) {
      status = VMM_OUT_OF_MEMORY;
      if (given > 0) place = find_place(arena, size, stream, config_->cross_stream != CrossStream::kNever);
      if (given > 0 && place.region != nullptr) status = prepare(arena, &place, stream, true);
    }
  }
  if (status == VMM_OK) {
    *out = take_place(arena, place, stream);
    return VMM_OK;
  }
  if (status == VMM_OUT_OF_MEMORY) fail(status, oom_sentence(size, pools_[arena->pool]));
  return status;
}

// Learns which fences are done, gives stale addresses back, and merges what may now be merged.
void Device::settle(Arena* arena) {
  bool changed = timelines_.poll();
  if (!stale_.empty()) reap();

  // Somebody will want to know about these next time: record the events now.
  if (arena->classes.size() > kMixed && arena->classes[kMixed] && !arena->classes[kMixed]->empty()) {
    std::vector<Block*> done;
    arena->classes[kMixed]->each_from(0, [&](Block* block) {
      bool all = true;
      block->each_fence([&](Fence fence) {
        if (timelines_.known_done(fence)) return;
        timelines_.cover(fence);
        all = false;
      });
      if (all) done.push_back(block);
      return true;
    });
    for (Block* block : done) {
      // An earlier merge may have swallowed it, or brought it fences that are open.
      if (block->state != BlockState::kMapped || block->cls != kMixed || !arena->all_known_done(block)) continue;
      arena->remove_free(block);
      block->cls = kDone;
      block->more.reset();
      arena->add_free(block);
    }
    changed = changed || !done.empty();
  }
  if (!changed) return;
  std::vector<Block*> seams;
  for (Block* block = arena->seams; block != nullptr; block = block->seam_next) {
    if (block->state == BlockState::kMapped) seams.push_back(block);
  }
  for (Block* block : seams) {
    // A block that an earlier merge swallowed is a seam no more.
    if (!block->in_seams || block->state != BlockState::kMapped) continue;
    arena->remove_free(block);
    arena->add_free(block);
  }
}

// The best fit among blocks whose fences turn out to be closed for this stream.
Block* Device::take_other_stream(Arena* arena, uint64_t size, StreamIndex stream) {
  constexpr int kTries = 16;
  Block* found = nullptr;
  for (Class cls = kMixed; cls < arena->classes.size(); ++cls) {
    if (cls == class_of(stream) || !arena->classes[cls]) continue;
    int tries = kTries;
    arena->classes[cls]->each_from(size, [&](Block* block) {
      bool ordered = true;
      block->each_fence([&](Fence fence) {
        if (timelines_.ordered(stream, fence)) return;
        timelines_.cover(fence);
        ordered = false;
      });
      ordered = ordered && start_in(block, size) + size <= block->end();
      if (ordered && better(block, found)) found = block;
      return !ordered && --tries > 0;
    });
  }
  return found == nullptr ? nullptr : take(arena, found, start_in(found, size), size, stream);
}

}  // namespace vmm

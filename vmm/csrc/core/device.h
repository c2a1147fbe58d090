// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
//
// One device: its lock, its tables and its policy.
//
// Every public function takes the lock itself, and no driver call, callback or Python code runs without the
// reader knowing: driver calls are made under the lock, OOM callbacks outside it. Tables change only in the
// steps named publish_*, after all driver calls of a plan succeeded.

#pragma once

#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core/address_map.h"
#include "core/arena.h"
#include "core/config.h"
#include "core/lock.h"
#include "core/recorder.h"
#include "core/remap.h"
#include "core/stats.h"
#include "core/timelines.h"

namespace vmm {

struct Pool {
  std::string name;
  uint64_t cap = 0;
  bool shared_pages = true;
  bool released = false;
  bool exists = true;
  bool asleep = false;
  Arena* small = nullptr;
  Arena* large = nullptr;

  uint64_t live() const { return (small != nullptr ? small->live : 0) + (large != nullptr ? large->live : 0); }
};

// Where a request will lie: [at, at + size) in a run of free blocks, once `missing` slots have pages.
struct Place {
  Region* region = nullptr;
  Address at = 0;
  uint64_t size = 0;
  uint64_t missing = 0;
  uint64_t waits = 0;  // blocks in it that the stream must wait for
  uint64_t run_size = 0;
  uint64_t extend = 0;      // bytes of address range to add at the end of the region first
  Block* anchor = nullptr;  // the last block before the run that is not free, null: there is none

  Address end() const { return at + size; }
};

class Device {
 public:
  Device(int id, const Config* config, Driver* driver, Recorder* recorder);

  vmm_status allocate(const vmm_request& request, void** out);
  vmm_status deallocate(void* pointer);
  vmm_status record_stream(void* pointer, Stream stream);
  vmm_status block_of(Address address, void** base, uint64_t* size, uint64_t* requested);

  vmm_status pool_create(const char* name, uint64_t cap, bool shared_pages, uint32_t* out);
  vmm_status pool_release(uint32_t pool);
  vmm_status pool_sleep(uint32_t pool, bool keep, uint64_t* released);
  vmm_status pool_wake(uint32_t pool);
  vmm_status pin(Address at, uint64_t size, vmm_pin_reason reason, int step);

  vmm_status compact(uint64_t target, bool release, bool sync, uint64_t* moved);
  vmm_status trim(uint64_t bytes, uint64_t* released);
  vmm_status mark_step();
  vmm_status set_limit(uint64_t bytes);
  vmm_status plan(const uint64_t* sizes, size_t count, Stream stream, vmm_fit* answer);
  vmm_status prefetch(const uint64_t* sizes, size_t count, Stream stream);

  vmm_status stats(uint64_t* out, size_t count);
  void reset_peak();
  size_t blocks(vmm_block_info* out, size_t capacity);
  size_t slots(vmm_slot_info* out, size_t capacity);
  size_t arenas(vmm_arena_info* out, size_t capacity);
  vmm_status check();
  void note(uint32_t tag);

  vmm_status clock_set(uint64_t t_ns);
  vmm_status clock_kernel(Stream stream, uint64_t duration_ns);
  vmm_status sync_stream(Stream stream);

  void count_retry();
  void count_oom(const vmm_request& request);

  // Gives everything back to the driver.
  void close();

  // The sentence of an out-of-memory error: who holds what.
  std::string oom_sentence(uint64_t size, const Pool& pool);

 private:
  struct SleepingPage {
    Region* region;
    size_t slot;
    std::vector<char> content;   // empty unless kept
    PageId left_over = kNoPage;  // of a failed attempt, may still be mapped there
  };
  struct SleepingArena {
    Arena* arena;
    std::vector<SleepingPage> pages;
  };

  // Allocation: device_allocate.cpp
  vmm_status allocate_locked(const vmm_request& request, StreamIndex stream, Arena** arena, Block** out);
  Block* fast(Arena* arena, uint64_t size, StreamIndex stream);
  Block* best_aligned(const FreeIndex& index, uint64_t size) const;
  bool aligned(uint64_t size) const { return config_->align_large != 0 && size >= config_->align_large; }
  // Where a request would begin in a free block; it may not fit behind that.
  Address start_in(const Block* block, uint64_t size) const {
    return aligned(size) ? block->region->page_ceil(block->address) : block->address;
  }
  Block* take(Arena* arena, Block* block, Address at, uint64_t size, StreamIndex stream);
  Block* take_other_stream(Arena* arena, uint64_t size, StreamIndex stream);
  vmm_status slow(Arena* arena, uint64_t size, StreamIndex stream, Block** out);
  void publish_live(Arena* arena, Block* block, const vmm_request& request, StreamIndex stream);
  void free_block(Block* block);
  void settle(Arena* arena);

  // Where to put a request: device_place.cpp
  Place find_place(Arena* arena, uint64_t size, StreamIndex stream, bool may_wait);
  static void consider(Place* best, const Place& candidate);
  Place place_in_run(const Run& run, Address at, uint64_t size, StreamIndex stream) const;
  Place place_at_end(Arena* arena, uint64_t size, StreamIndex stream, bool may_wait) const;
  vmm_status ensure_range(Arena* arena, uint64_t bytes);
  // Makes the place ready: pages behind all of it, the stream waiting for what it must.
  vmm_status prepare(Arena* arena, Place* place, StreamIndex stream, bool may_create);
  Block* take_place(Arena* arena, const Place& place, StreamIndex stream);
  Block* block_at(const Place& place, Address address) const;

  // Pages: device_pages.cpp, device_steal.cpp, device_publish.cpp
  vmm_status obtain(Arena* arena, const Place& place, uint64_t extra, StreamIndex stream, bool may_create,
                    std::vector<Move>* moves);
  uint64_t create_pages(uint64_t count, uint64_t limit, vmm_status* status);
  // Whose pages may be taken: everybody's, those of pools that share, those that a pool may have, its own.
  struct Donors {
    enum Who { kAll, kSharing, kOfPool, kOwn } who = kAll;
    uint32_t pool = 0;
  };
  uint64_t steal_pages(Donors donors, const Place* place, uint64_t count, StreamIndex stream, bool only_done,
                       std::vector<Move>* moves);
  bool may_steal_from(const Arena* from, Donors donors) const;
  vmm_status run_moves(std::vector<Move>* moves, StreamIndex stream);
  void publish_moves(const std::vector<Move>& moves, StreamIndex stream);
  void publish_mapped(Region* region, size_t first, size_t last, const std::vector<Fence>& fences);
  void publish_broken(const Remap::Broken& broken);
  Block* carve(Block* hint, Address low, Address high, BlockState state, Block** rest);
  void count_mapped(Arena* arena, int64_t pages);
  void reap();
  vmm_status to_spare(uint64_t count, uint64_t* done, vmm_map_cause cause, Donors donors);
  uint64_t release_spare(uint64_t count);
  uint64_t stealable_pages(StreamIndex stream, Donors donors);

  // Limits
  uint64_t hard_limit();
  uint64_t soft_limit(uint64_t more) const;
  uint64_t reserved() const { return pages_.created * page_size_; }
  uint64_t pool_bytes(const Pool& pool) const;

  Arena* new_arena(uint32_t pool, bool small);
  Arena* arena_for(Pool& pool, uint32_t id, uint64_t size) {
    bool small = size <= config_->small_max;
    Arena*& arena = small ? pool.small : pool.large;
    if (arena == nullptr) arena = new_arena(id, small);
    return arena;
  }
  vmm_status forget_pool(uint32_t pool);
  vmm_status wake_arena(Arena* arena);
  void publish_woken(const std::vector<Move>& moves);
  void publish_asleep(const std::vector<Move>& moves);
  void publish_half_asleep(std::vector<SleepingArena>* arenas, const Remap::Broken& broken);
  void drain_asleep(Arena* arena);
  SleepingPage* sleeping_page(const Region* region, size_t slot);
  void quarantine(PageId page);

  void record(vmm_action action, Address address, uint64_t size, uint64_t aux, StreamIndex stream, uint32_t pool,
              uint32_t tag = 0, uint32_t stack = 0);
  void record_page(vmm_action action, const Region* region, size_t slot, PageId page, vmm_map_cause cause,
                   StreamIndex stream);
  uint64_t now() const;
  vmm_status driver_failed(vmm_status status, const std::string& what);
  vmm_status finish(vmm_status status);  // runs the checks that config.check asks for
  vmm_status check_locked();

  int id_;
  const Config* config_;
  Driver* driver_;
  Recorder* recorder_;
  Capabilities capabilities_;
  bool clock_used_ = false;  // somebody drives the logical clock: events carry its time
  uint64_t page_size_;
  uint64_t total_ = 0;  // of the device

  mutable Lock lock_;
  Timelines timelines_;
  PagePool pages_;
  AddressMap live_;
  BlockSlab slab_;
  Stats stats_;
  std::vector<std::unique_ptr<Arena>> arenas_;
  std::vector<Pool> pools_;
  Remap remap_;

  struct StaleRange {
    Block* block;
    size_t slot, count;
    std::vector<Fence> fences;
  };
  std::vector<StaleRange> stale_;

  std::vector<SleepingArena> sleeping_;

  uint64_t limit_;  // set by the user, 0: none
  uint64_t step_peak_ = 0;
  std::deque<uint64_t> step_peaks_;
  uint32_t epoch_ = 0;  // of walks
  uint32_t plan_ = 0;   // of plans, marks slots
};

}  // namespace vmm

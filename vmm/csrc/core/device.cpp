// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
//
// Set-up, pools, pins, limits and records of a device.

#include "core/device.h"

#include <time.h>

#include <algorithm>

#include "core/sentences.h"
#include "core/tags.h"

namespace vmm {

Device::Device(int id, const Config* config, Driver* driver, Recorder* recorder)
    : id_(id),
      config_(config),
      driver_(driver),
      recorder_(recorder),
      capabilities_(driver->capabilities(id)),
      page_size_(config->page),
      timelines_(driver, id),
      remap_(driver, id, &pages_, config->page),
      limit_(config->limit) {
  uint64_t free = 0;
  if (driver_->memory_info(id_, &free, &total_) != VMM_OK) total_ = 0;
  timelines_.index_of(0);
  clock_used_ = config->driver.driver == "null";  // a simulation from the beginning
  Pool pool;
  pool.name = "default";
  pools_.push_back(pool);
}

Arena* Device::new_arena(uint32_t pool, bool small) {
  auto arena = std::make_unique<Arena>();
  arena->id = static_cast<uint32_t>(arenas_.size());
  arena->pool = pool;
  arena->small = small;
  arena->page_size = page_size_;
  arena->slab = &slab_;
  arena->timelines = &timelines_;
  arenas_.push_back(std::move(arena));
  return arenas_.back().get();
}

uint64_t Device::hard_limit() {
  uint64_t free = 0;
  if (total_ == 0 && driver_->memory_info(id_, &free, &total_) != VMM_OK) total_ = 0;  // it failed at the start
  double fraction = config_->fraction;
  uint64_t limit = static_cast<uint64_t>(static_cast<double>(total_) * fraction);
  limit = limit > config_->reserve_outside ? limit - config_->reserve_outside : 0;
  return limit_ != 0 ? std::min(limit, limit_) : limit;
}

// A little more than the highest live bytes of the last steps, this request included. A limit that the user
// has set is a budget instead: it is used in full before anything moves.
uint64_t Device::soft_limit(uint64_t more) const {
  if (limit_ != 0) return limit_;
  uint64_t peak = std::max(step_peak_, stats_.allocated_bytes.current() + more);
  for (uint64_t step : step_peaks_) peak = std::max(peak, step);
  double soft = static_cast<double>(peak) * (1 + config_->soft_slack);
  uint64_t pages = (static_cast<uint64_t>(soft) + page_size_ - 1) / page_size_;
  return std::max(pages * page_size_, config_->soft_floor);
}

uint64_t Device::pool_bytes(const Pool& pool) const {
  uint64_t pages = 0;
  for (const Arena* arena : {pool.small, pool.large}) pages += arena != nullptr ? arena->mapped_pages : 0;
  return pages * page_size_;
}

vmm_status Device::pool_create(const char* name, uint64_t cap, bool shared_pages, uint32_t* out) {
  std::lock_guard guard(lock_);
  Pool pool;
  pool.name = name == nullptr ? "" : name;
  pool.cap = cap;
  pool.shared_pages = shared_pages;
  for (size_t i = 1; i < pools_.size(); ++i) {
    if (pools_[i].exists) continue;
    // A forgotten pool left its empty arenas; they serve the next.
    pool.small = pools_[i].small;
    pool.large = pools_[i].large;
    pools_[i] = pool;
    *out = static_cast<uint32_t>(i);
    return VMM_OK;
  }
  if (pools_.size() >= UINT16_MAX) return fail(VMM_INVALID, "pool: there are 65535 pools already");
  *out = static_cast<uint32_t>(pools_.size());
  pools_.push_back(pool);
  return VMM_OK;
}

vmm_status Device::pool_release(uint32_t id) {
  std::lock_guard guard(lock_);
  if (id == 0 || id >= pools_.size() || !pools_[id].exists) {
    return fail(VMM_INVALID, "pool: " + std::to_string(id) + " is not a private pool");
  }
  pools_[id].released = true;
  return pools_[id].live() == 0 ? finish(forget_pool(id)) : VMM_OK;
}

// The pages of an empty pool go where all others can have them, as far as nobody has to be waited for; what
// remains can be stolen later.
vmm_status Device::forget_pool(uint32_t id) {
  Pool& pool = pools_[id];
  pool.exists = false;
  pool.shared_pages = true;
  pool.asleep = false;
  timelines_.cover_all();
  timelines_.poll();
  for (Arena* arena : {pool.small, pool.large}) {
    if (arena == nullptr) continue;
    if (arena->asleep) drain_asleep(arena);
    // Now free blocks of a sleeping arena have no pages behind them.
    for (const auto& region : arena->regions) {
      for (Block* block = region->first; arena->asleep && block != nullptr; block = block->next) {
        if (block->state != BlockState::kMapped) continue;
        arena->remove_free(block);
        block->state = BlockState::kUnmapped;
        block->cls = kDone;
        block->more.reset();
        block = arena->add_free(block);
      }
    }
    Remap::Broken left_over;
    for (const SleepingArena& one : sleeping_) {
      for (const SleepingPage& page : one.pages) {
        if (one.arena != arena || page.left_over == kNoPage) continue;
        left_over.slots.push_back({page.region, page.slot, page.left_over, true});
      }
    }
    std::erase_if(sleeping_, [&](const SleepingArena& one) { return one.arena == arena; });
    arena->asleep = false;
    publish_broken(left_over);
    for (const auto& region : arena->regions) {
      for (const Slot& slot : region->slots) {
        if (slot.page != kNoPage && !slot.stale) pages_[slot.page].pins[VMM_PIN_GRAPH] = 0;
      }
    }
    uint64_t done = 0;
    to_spare(UINT64_MAX, &done, VMM_CAUSE_POOL, {Donors::kOwn, id});
    arena->shrink();
  }
  return VMM_OK;
}

vmm_status Device::pin(Address at, uint64_t size, vmm_pin_reason reason, int step) {
  if (reason < 0 || reason >= VMM_PIN_REASONS) {
    return fail(VMM_INVALID, "reason: " + std::to_string(reason) + " is not one of the four reasons for a pin");
  }
  if (size == 0) return VMM_OK;
  std::lock_guard guard(lock_);
  for (const auto& arena : arenas_) {
    Region* region = arena->region_of(at);
    if (region == nullptr) continue;
    if (size > region->end() - at) break;
    size_t first = region->slot_of(at), last = region->slot_of(at + size - 1);
    for (size_t slot = first; slot <= last; ++slot) {
      if (region->slots[slot].page == kNoPage || region->slots[slot].stale) {
        return fail(VMM_INVALID, "pointer: the range to pin has no memory behind all of it");
      }
      uint16_t count = pages_[region->slots[slot].page].pins[reason];
      if (step > 0 ? count == UINT16_MAX : count == 0) {
        return fail(VMM_INVALID, step > 0 ? "pointer: pinned 65535 times already"
                                          : "pointer: the range is not pinned for this reason");
      }
    }
    for (size_t slot = first; slot <= last; ++slot) {
      uint16_t& count = pages_[region->slots[slot].page].pins[reason];
      count = static_cast<uint16_t>(count + step);
    }
    return VMM_OK;
  }
  return fail(VMM_INVALID, "pointer: the range to pin does not lie in memory of this allocator");
}

vmm_status Device::mark_step() {
  std::lock_guard guard(lock_);
  step_peaks_.push_back(step_peak_);
  while (step_peaks_.size() > config_->soft_steps) step_peaks_.pop_front();
  step_peak_ = stats_.allocated_bytes.current();
  stats_.last_step_steals = stats_.steals() - stats_.step_start_steals;
  stats_.step_start_steals = stats_.steals();
  if (recorder_->on()) record(VMM_EVENT_STEP, 0, 0, 0, 0, 0);
  return VMM_OK;
}

vmm_status Device::set_limit(uint64_t bytes) {
  {
    std::lock_guard guard(lock_);
    limit_ = bytes;
    if (bytes == 0 || reserved() <= bytes) return VMM_OK;
    bytes = reserved() - bytes;
  }
  uint64_t released = 0;
  return trim(bytes, &released);
}

uint64_t Device::now() const {
  if (clock_used_) return driver_->clock_now(id_);
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<uint64_t>(time.tv_sec) * 1000000000u + static_cast<uint64_t>(time.tv_nsec);
}

void Device::record(vmm_action action, Address address, uint64_t size, uint64_t aux, StreamIndex stream, uint32_t pool,
                    uint32_t tag, uint32_t stack) {
  if (!recorder_->on()) return;
  vmm_event event{};
  event.t_ns = now();
  event.address = address;
  event.size = size;
  // A wait names the other stream in aux.
  event.aux =
      action == VMM_EVENT_WAIT ? recorder_->stream_number(timelines_.handle(static_cast<StreamIndex>(aux))) : aux;
  event.stream = recorder_->stream_number(timelines_.handle(stream));
  event.pool = static_cast<uint16_t>(pool);
  event.device = static_cast<uint8_t>(id_);
  event.action = static_cast<uint8_t>(action);
  event.thread = thread_number();
  event.tag = tag;
  event.stack = stack;
  recorder_->push(event);
}

void Device::record_page(vmm_action action, const Region* region, size_t slot, PageId page, vmm_map_cause cause,
                         StreamIndex stream) {
  if (!recorder_->on()) return;
  uint64_t aux = static_cast<uint64_t>(page) | static_cast<uint64_t>(cause) << 56;
  record(action, region->address_of(slot), page_size_, aux, stream, region->arena->pool);
}

void Device::count_retry() {
  std::lock_guard guard(lock_);
  ++stats_.retries;
}

void Device::count_oom(const vmm_request& request) {
  std::lock_guard guard(lock_);
  ++stats_.ooms;
  uint64_t free = 0, total = 0;
  if (recorder_->on()) driver_->memory_info(id_, &free, &total);
  record(VMM_EVENT_OOM, 0, request.size, free, timelines_.index_of(request.stream), request.pool, request.tag,
         request.stack);
}

void Device::note(uint32_t tag) {
  std::lock_guard guard(lock_);
  record(VMM_EVENT_NOTE, 0, 0, 0, 0, 0, tag);
}

vmm_status Device::clock_set(uint64_t t_ns) {
  std::lock_guard guard(lock_);
  clock_used_ = capabilities_.logical_clock;
  return driver_->clock_set(id_, t_ns);
}

vmm_status Device::clock_kernel(Stream stream, uint64_t duration_ns) {
  std::lock_guard guard(lock_);
  clock_used_ = capabilities_.logical_clock;
  return driver_->clock_kernel(id_, stream, duration_ns);
}

// The host waits for all work of a stream.
vmm_status Device::sync_stream(Stream stream) {
  std::lock_guard guard(lock_);
  StreamIndex index = timelines_.index_of(stream);
  return timelines_.sync(timelines_.mark(index));
}

vmm_status Device::driver_failed(vmm_status status, const std::string& what) {
  std::string reason = last_reason();
  // The caller did nothing wrong.
  if (status == VMM_INVALID || status == VMM_NOT_READY) status = VMM_DRIVER;
  return fail(status,
              std::string("driver ") + driver_->name() + ": " + what + (reason.empty() ? "" : "; it says: " + reason));
}

vmm_status Device::finish(vmm_status status) {
  if (config_->check < 2) return status;
  std::string before = last_error();
  vmm_status checked = check_locked();
  if (checked != VMM_OK) return checked;
  return status == VMM_OK ? VMM_OK : fail(status, before);
}

}  // namespace vmm

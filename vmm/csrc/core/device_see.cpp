// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
//
// Statistics, lists of what there is, and the sentence of an out-of-memory error.

#include <algorithm>
#include <map>

#include "core/device.h"
#include "core/sentences.h"
#include "core/tags.h"

namespace vmm {
namespace {

const char* const kPinNames[] = {"ipc", "registered", "graph", "user"};
const char* const kDriverNames[] = {"create", "release", "map", "unmap", "access", "reserve", "event", "wait", "sync"};

// A row of statistics is made by naming each number once; the table of names comes from the same code.
class Row {
 public:
  explicit Row(std::vector<std::string>* names) : names_(names) {}

  void put(const std::string& name, uint64_t value) {
    if (names_ != nullptr) names_->push_back(name);
    values.push_back(value);
  }
  void put(const std::string& name, const Gauge& gauge) {
    put(name + ".current", gauge.current);
    put(name + ".peak", gauge.peak);
    put(name + ".allocated", gauge.allocated());
    put(name + ".freed", gauge.freed);
  }
  void put(const std::string& name, const Gauges& gauges) {
    put(name + ".all", gauges.all());
    put(name + ".small", gauges.small);
    put(name + ".large", gauges.large);
  }

  std::vector<uint64_t> values;

 private:
  std::vector<std::string>* names_;
};

struct Numbers {
  Stats stats;
  Gauges split, split_bytes;  // free mapped blocks: what torch calls inactive_split
  uint64_t created = 0, spare = 0, mapped = 0, stale = 0, quarantined = 0, pinned = 0;
  uint64_t pins[VMM_PIN_REASONS] = {};
  uint64_t waits = 0, syncs = 0, largest_run = 0, free_mapped = 0, stealable = 0;
  uint64_t limit = 0, soft = 0, page_size = 0, host_steps_steals = 0;
  Driver::Count driver[Driver::kKinds];
};

void fill(Row* row, const Numbers& n) {
  row->put("allocation", n.stats.allocation);
  row->put("allocated_bytes", n.stats.allocated_bytes);
  row->put("active", n.stats.allocation);
  row->put("active_bytes", n.stats.allocated_bytes);
  row->put("requested_bytes", n.stats.requested_bytes);
  // A segment is a physical page. Spare pages belong to neither kind of arena.
  auto bytes = [&](const Gauge& pages) {
    return Gauge{pages.current * n.page_size, pages.peak * n.page_size, pages.freed * n.page_size};
  };
  row->put("segment.all", n.stats.pages);
  row->put("segment.small", n.stats.mapped.small);
  row->put("segment.large", n.stats.mapped.large);
  row->put("reserved_bytes.all", bytes(n.stats.pages));
  row->put("reserved_bytes.small", bytes(n.stats.mapped.small));
  row->put("reserved_bytes.large", bytes(n.stats.mapped.large));
  row->put("inactive_split", n.split);
  row->put("inactive_split_bytes", n.split_bytes);
  row->put("num_alloc_retries", n.stats.retries);
  row->put("num_ooms", n.stats.ooms);
  row->put("num_sync_all_streams", n.syncs);
  row->put("num_device_alloc", n.stats.pages.allocated());
  row->put("num_device_free", n.stats.pages.freed);
  row->put("pages.created", n.created);
  row->put("pages.free", n.spare);
  row->put("pages.mapped", n.mapped);
  row->put("pages.stale", n.stale);
  row->put("pages.quarantined", n.quarantined);
  row->put("pages.pinned", n.pinned);
  for (int i = 0; i < VMM_PIN_REASONS; ++i) row->put(std::string("pages.pinned_") + kPinNames[i], n.pins[i]);
  row->put("steals.move", n.stats.moves);
  row->put("steals.alias", n.stats.aliases);
  row->put("steals.cross_stream", n.stats.cross_stream);
  row->put("steals_step", n.stats.steals() - n.stats.step_start_steals);
  row->put("steals_last_step", n.stats.last_step_steals);
  row->put("waits", n.waits);
  row->put("syncs", n.syncs);
  row->put("largest_run", n.largest_run);
  row->put("free_mapped_bytes", n.free_mapped);
  row->put("pool_free_bytes", n.spare * n.page_size);
  row->put("stealable_bytes", n.stealable * n.page_size);
  for (int i = 0; i < Driver::kKinds; ++i) {
    row->put(std::string("driver.") + kDriverNames[i] + ".calls", n.driver[i].calls);
    row->put(std::string("driver.") + kDriverNames[i] + ".ns", n.driver[i].ns);
  }
  row->put("limit_bytes", n.limit);
  row->put("soft_limit_bytes", n.soft);
  row->put("page_size", n.page_size);
}

}  // namespace

const std::vector<std::string>& stat_names() {
  static const std::vector<std::string>* names = [] {
    auto* all = new std::vector<std::string>;
    Row row(all);
    fill(&row, Numbers{});
    return all;
  }();
  return *names;
}

vmm_status Device::stats(uint64_t* out, size_t count) {
  std::lock_guard guard(lock_);
  Numbers n;
  n.stats = stats_;
  n.created = pages_.created;
  n.spare = pages_.spare.size();
  n.mapped = pages_.mapped;
  n.quarantined = pages_.quarantined;
  for (const StaleRange& range : stale_) n.stale += range.count;
  for (const Page& page : pages_.pages) {
    if (page.state != PageState::kMapped) continue;
    n.pinned += page.pinned();
    for (int i = 0; i < VMM_PIN_REASONS; ++i) n.pins[i] += page.pins[i] != 0;
  }
  for (const auto& arena : arenas_) {
    for (const auto& index : arena->classes) {
      if (!index) continue;
      n.free_mapped += index->bytes();
      n.largest_run = std::max(n.largest_run, index->largest());
      n.split.add(arena->small, index->count());
      n.split_bytes.add(arena->small, index->bytes());
    }
  }
  n.stealable = stealable_pages(0, {Donors::kOfPool, 0});
  n.waits = timelines_.waits;
  n.syncs = timelines_.syncs;
  n.limit = hard_limit();
  n.soft = soft_limit(0);
  n.page_size = page_size_;
  for (int i = 0; i < Driver::kKinds; ++i) n.driver[i] = driver_->count(id_, static_cast<Driver::Kind>(i));
  Row row(nullptr);
  fill(&row, n);
  std::copy_n(row.values.begin(), std::min(count, row.values.size()), out);
  return VMM_OK;
}

void Device::reset_peak() {
  std::lock_guard guard(lock_);
  stats_.reset_peak();
}

size_t Device::blocks(vmm_block_info* out, size_t capacity) {
  std::lock_guard guard(lock_);
  size_t count = 0;
  for (const auto& arena : arenas_) {
    for (const auto& region : arena->regions) {
      for (Block* block = region->first; block != nullptr; block = block->next, ++count) {
        if (count >= capacity) continue;
        vmm_block_info& row = out[count];
        row = {};
        row.address = block->address;
        row.size = block->size;
        row.requested = block->state == BlockState::kActive ? block->requested : 0;
        row.stream =
            block->cls >= kFirstStream ? timelines_.handle(static_cast<StreamIndex>(block->cls - kFirstStream)) : 0;
        row.arena = arena->id;
        row.pool = arena->pool;
        row.tag = block->tag;
        row.stack = block->stack;
        row.state = block->state == BlockState::kActive   ? VMM_BLOCK_ACTIVE
                    : block->state == BlockState::kMapped ? VMM_BLOCK_FREE_MAPPED
                                                          : VMM_BLOCK_FREE_UNMAPPED;
        row.asleep = arena->asleep;
        if (block->state == BlockState::kMapped) {
          block->each_fence([&](Fence fence) { row.fence += timelines_.known_done(fence) ? 0 : 1; });
        }
      }
    }
  }
  return count;
}

size_t Device::slots(vmm_slot_info* out, size_t capacity) {
  std::lock_guard guard(lock_);
  size_t count = 0;
  for (const auto& arena : arenas_) {
    for (const auto& region : arena->regions) {
      for (size_t slot = 0; slot < region->slots.size(); ++slot, ++count) {
        if (count >= capacity) continue;
        const Slot& entry = region->slots[slot];
        vmm_slot_info& row = out[count];
        row = {};
        row.address = region->address_of(slot);
        row.page = entry.page;
        row.arena = arena->id;
        row.stale = entry.stale;
        if (entry.page == kNoPage || entry.stale) continue;
        for (int i = 0; i < VMM_PIN_REASONS; ++i) row.pins[i] = pages_[entry.page].pins[static_cast<size_t>(i)];
      }
    }
  }
  return count;
}

size_t Device::arenas(vmm_arena_info* out, size_t capacity) {
  std::lock_guard guard(lock_);
  size_t count = 0;
  for (const auto& arena : arenas_) {
    for (const auto& region : arena->regions) {
      if (count++ >= capacity) continue;
      vmm_arena_info& row = out[count - 1];
      row = {};
      row.base = region->base;
      row.reserved = region->reserved;
      row.used = region->used();
      row.page_size = page_size_;
      row.arena = arena->id;
      row.pool = arena->pool;
      row.small = arena->small;
      row.asleep = arena->asleep;
      const std::string& name = pools_[arena->pool].name;
      std::copy_n(name.begin(), std::min(name.size(), sizeof row.pool_name - 1), row.pool_name);
    }
  }
  return count;
}

vmm_status Device::block_of(Address address, void** base, uint64_t* size, uint64_t* requested) {
  std::lock_guard guard(lock_);
  Block* block = live_.find(address);
  if (block == nullptr) {
    for (const auto& arena : arenas_) {
      Region* region = arena->region_of(address);
      if (region == nullptr) continue;
      for (block = region->first; block != nullptr && block->end() <= address;) block = block->next;
      break;
    }
  }
  if (block == nullptr || block->state != BlockState::kActive) {
    return fail(VMM_INVALID, "address: it does not lie in a live allocation");
  }
  if (base != nullptr) *base = reinterpret_cast<void*>(block->address);
  if (size != nullptr) *size = block->size;
  if (requested != nullptr) *requested = block->requested;
  return VMM_OK;
}

std::string Device::oom_sentence(uint64_t size, const Pool& pool) {
  uint64_t free = 0, total = 0, mapped_free = 0, largest = 0;
  driver_->memory_info(id_, &free, &total);
  for (const auto& arena : arenas_) {
    if (arena->asleep) continue;  // its free blocks have nothing behind them
    mapped_free += arena->free_mapped_bytes();
    for (const auto& index : arena->classes) largest = std::max(largest, index ? index->largest() : 0);
  }
  uint64_t pinned[VMM_PIN_REASONS] = {};
  for (const Page& page : pages_.pages) {
    for (size_t i = 0; i < VMM_PIN_REASONS; ++i) pinned[i] += page.pins[i] != 0 ? page_size_ : 0;
  }
  std::map<uint32_t, uint64_t> tags;
  uint64_t asleep = 0;
  live_.each([&](Block* block) {
    tags[block->tag] += block->size;
    asleep += block->region->arena->asleep ? block->size : 0;
  });
  std::vector<std::pair<uint64_t, uint32_t>> top;
  for (const auto& [tag, bytes] : tags) top.emplace_back(bytes, tag);
  std::sort(top.rbegin(), top.rend());

  const uint32_t id = static_cast<uint32_t>(&pool - pools_.data());
  uint64_t ours = reserved(), used = total > free ? total - free : 0;
  std::string text = "device " + std::to_string(id_) + ": out of memory for " + bytes_text(size) +
                     (pool.name == "default" ? "" : " in pool '" + pool.name + "'") + "; limit " +
                     bytes_text(hard_limit()) + ", held " + bytes_text(ours) + ", live " +
                     bytes_text(stats_.allocated_bytes.current()) +
                     (asleep != 0 ? " of which asleep " + bytes_text(asleep) : std::string()) + ", free but mapped " +
                     bytes_text(mapped_free) + ", spare pages " + bytes_text(pages_.spare.size() * page_size_) +
                     ", largest free run " + bytes_text(largest) + ", pages that could move " +
                     bytes_text(stealable_pages(0, {Donors::kOfPool, id}) * page_size_) + ", in use by others " +
                     bytes_text(used > ours ? used - ours : 0);
  if (pool.cap != 0)
    text += ", cap of the pool " + bytes_text(pool.cap) + " of which " + bytes_text(pool_bytes(pool)) + " are held";
  for (size_t i = 0; i < VMM_PIN_REASONS; ++i) {
    if (pinned[i] != 0) text += std::string(", pinned (") + kPinNames[i] + ") " + bytes_text(pinned[i]);
  }
  if (pages_.quarantined != 0) text += ", lost to failed driver calls " + bytes_text(pages_.quarantined * page_size_);
  for (size_t i = 0; i < std::min<size_t>(top.size(), 5); ++i) {
    const char* name = tag_text(top[i].second);
    if (top.size() == 1 && top[i].second == 0) break;
    text += (i == 0 ? "; most by tag: " : ", ") + std::string(name == nullptr || *name == '\0' ? "untagged" : name) +
            " " + bytes_text(top[i].first);
  }
  return text;
}

}  // namespace vmm

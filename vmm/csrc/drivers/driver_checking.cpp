// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
#include "drivers/driver_checking.h"

#include "drivers/reason.h"

namespace vmm {
namespace {

constexpr auto nothing_to_do = [](auto&) {};

std::string number(Handle page) { return "page " + std::to_string(page); }

}  // namespace

CheckingDriver::CheckingDriver(std::unique_ptr<Driver> inner, int devices)
    : Forwarding(std::move(inner)), devices_(static_cast<size_t>(devices)) {
  for (int i = 0; i < devices; ++i) {
    const Capabilities capabilities = this->inner().capabilities(i);
    devices_[i].granularity = capabilities.granularity;
    devices_[i].alias = capabilities.alias;
  }
}

template <class Why, class Down, class Done>
vmm_status CheckingDriver::check(const char* call, int device, const Why& why, const Down& down, const Done& done) {
  if (dead_.load(std::memory_order_relaxed)) return down();
  const bool known = static_cast<unsigned>(device) < devices_.size();
  const std::string broken = known ? why(devices_[device]) : "there is no such device";
  if (!broken.empty()) {
    const std::string sentence = std::string(call) + " on device " + std::to_string(device) + ": " + broken;
    const std::lock_guard lock(mutex_);
    violations_ += sentence + "\n";
    return refuse(VMM_INVALID, sentence);
  }
  const vmm_status status = down();
  if (status == VMM_OK) done(devices_[device]);
  return status;
}

std::string CheckingDriver::why_not_granular(const Device& state, uint64_t size, Address at) const {
  if (size == 0) return "size must not be 0";
  if (size % state.granularity == 0 && at % state.granularity == 0) return "";
  return std::to_string(size) + " bytes at " + hex(at) + " are not multiples of the granularity " +
         std::to_string(state.granularity);
}

std::string CheckingDriver::why_not_page(const Device& state, uint64_t size, Handle page) const {
  const auto it = state.known.find(page);
  if (it == state.known.end()) return number(page) + " was never created or is released";
  const uint64_t real = state.pages.at(it->second).size;
  if (real == size) return "";
  return number(page) + " has " + std::to_string(real) + " bytes, not " + std::to_string(size);
}

std::string CheckingDriver::why_not_map(const Device& state, Address at, uint64_t size, Handle page) const {
  std::string why = why_not_granular(state, size, at);
  if (why.empty()) why = why_not_page(state, size, page);
  if (why.empty()) why = state.table.why_not_map(at, size);
  if (why.empty() && !state.alias && state.pages.at(state.known.at(page)).mappings != 0) {
    why = number(page) + " is mapped already and the driver has no aliases";
  }
  return why;
}

std::string CheckingDriver::why_not_event(const Device& state, Event event) const {
  return state.events.count(event) ? "" : "there is no event " + std::to_string(event);
}

std::string CheckingDriver::violations() const {
  const std::lock_guard lock(mutex_);
  return violations_;
}

std::string CheckingDriver::leaks() const {
  size_t ranges = 0, mappings = 0, pages = 0, events = 0;
  for (const Device& device : devices_) {
    ranges += device.table.ranges().size();
    mappings += device.table.mappings().size();
    events += device.events.size();
    pages += device.known.size();
  }
  if (ranges + mappings + pages + events == 0) return "";
  return "not given back: " + std::to_string(ranges) + " address ranges, " + std::to_string(pages) + " pages, " +
         std::to_string(mappings) + " mappings, " + std::to_string(events) + " events";
}

vmm_status CheckingDriver::va_reserve(int device, uint64_t size, Address* out) {
  return check(
      "va_reserve", device, [&](Device& state) { return why_not_granular(state, size); },
      [&] { return inner().va_reserve(device, size, out); }, [&](Device& state) { state.table.reserve(*out, size); });
}

vmm_status CheckingDriver::va_free(int device, Address base, uint64_t size) {
  return check(
      "va_free", device, [&](Device& state) { return state.table.why_not_free(base, size); },
      [&] { return inner().va_free(device, base, size); }, [&](Device& state) { state.table.free(base); });
}

vmm_status CheckingDriver::page_create(int device, uint64_t size, Handle* out) {
  return check(
      "page_create", device, [&](Device& state) { return why_not_granular(state, size); },
      [&] { return inner().page_create(device, size, out); },
      [&](Device& state) {
        state.known[*out] = state.next_page;
        state.pages[state.next_page++] = {size, 0, false};
      });
}

vmm_status CheckingDriver::page_release(int device, uint64_t size, Handle page) {
  return check(
      "page_release", device, [&](Device& state) { return why_not_page(state, size, page); },
      [&] { return inner().page_release(device, size, page); },
      [&](Device& state) {
        const auto it = state.pages.find(state.known.at(page));
        it->second.released = true;
        if (it->second.mappings == 0) state.pages.erase(it);
        state.known.erase(page);
      });
}

vmm_status CheckingDriver::map(int device, Address at, uint64_t size, Handle page) {
  return check(
      "map", device, [&](Device& state) { return why_not_map(state, at, size, page); },
      [&] { return inner().map(device, at, size, page); },
      [&](Device& state) {
        state.table.map(at, size, state.known.at(page));
        ++state.pages.at(state.known.at(page)).mappings;
      });
}

vmm_status CheckingDriver::unmap(int device, Address at, uint64_t size) {
  return check(
      "unmap", device,
      [&](Device& state) {
        const std::string why = why_not_granular(state, size, at);
        return why.empty() ? state.table.why_not_unmap(at, size) : why;
      },
      [&] { return inner().unmap(device, at, size); },
      [&](Device& state) {
        for (const uint64_t page : state.table.unmap(at, size)) {
          const auto it = state.pages.find(page);
          if (--it->second.mappings == 0 && it->second.released) state.pages.erase(it);
        }
      });
}

vmm_status CheckingDriver::set_access(int device, Address at, uint64_t size) {
  return check(
      "set_access", device,
      [&](Device& state) {
        const std::string why = why_not_granular(state, size, at);
        return why.empty() ? state.table.why_not_set_access(at, size) : why;
      },
      [&] { return inner().set_access(device, at, size); }, [&](Device& state) { state.table.set_access(at, size); });
}

vmm_status CheckingDriver::stream_wait(int device, Stream stream, Event event) {
  return check(
      "stream_wait", device, [&](Device& state) { return why_not_event(state, event); },
      [&] { return inner().stream_wait(device, stream, event); }, nothing_to_do);
}

vmm_status CheckingDriver::event_create(int device, Event* out) {
  return check(
      "event_create", device, [](Device&) { return std::string(); }, [&] { return inner().event_create(device, out); },
      [&](Device& state) { state.events.insert(*out); });
}

vmm_status CheckingDriver::event_destroy(int device, Event event) {
  return check(
      "event_destroy", device, [&](Device& state) { return why_not_event(state, event); },
      [&] { return inner().event_destroy(device, event); }, [&](Device& state) { state.events.erase(event); });
}

vmm_status CheckingDriver::event_record(int device, Event event, Stream stream) {
  return check(
      "event_record", device, [&](Device& state) { return why_not_event(state, event); },
      [&] { return inner().event_record(device, event, stream); }, nothing_to_do);
}

vmm_status CheckingDriver::event_query(int device, Event event) {
  return check(
      "event_query", device, [&](Device& state) { return why_not_event(state, event); },
      [&] { return inner().event_query(device, event); }, nothing_to_do);
}

vmm_status CheckingDriver::event_sync(int device, Event event) {
  return check(
      "event_sync", device, [&](Device& state) { return why_not_event(state, event); },
      [&] { return inner().event_sync(device, event); }, nothing_to_do);
}

vmm_status CheckingDriver::copy_out(int device, void* to, Address from, uint64_t size) {
  return check(
      "copy_out", device, [&](Device& state) { return state.table.why_not_touch(from, size); },
      [&] { return inner().copy_out(device, to, from, size); }, nothing_to_do);
}

vmm_status CheckingDriver::copy_in(int device, Address to, const void* from, uint64_t size) {
  return check(
      "copy_in", device, [&](Device& state) { return state.table.why_not_touch(to, size); },
      [&] { return inner().copy_in(device, to, from, size); }, nothing_to_do);
}

vmm_status CheckingDriver::page_export(int device, Handle page, int* fd) {
  return check(
      "page_export", device,
      [&](Device& state) {
        const auto it = state.known.find(page);
        return why_not_page(state, it == state.known.end() ? 0 : state.pages.at(it->second).size, page);
      },
      [&] { return inner().page_export(device, page, fd); }, nothing_to_do);
}

void CheckingDriver::abandon() {
  dead_.store(true, std::memory_order_relaxed);
  Forwarding::abandon();
}

}  // namespace vmm

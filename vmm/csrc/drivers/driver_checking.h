// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
//
// Holds the caller to the contract of driver.h: it keeps a model of all that was handed out, refuses a
// call that breaks a rule with VMM_INVALID before it reaches the driver, and remembers it.

#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "drivers/forwarding.h"
#include "drivers/mapping_table.h"

namespace vmm {

class CheckingDriver final : public Forwarding {
 public:
  CheckingDriver(std::unique_ptr<Driver> inner, int devices);

  // One sentence a line about each broken rule so far, "" if there was none.
  std::string violations() const;
  // What was handed out and not given back, in one sentence, "" if that is nothing.
  std::string leaks() const;

  vmm_status va_reserve(int device, uint64_t size, Address* out) override;
  vmm_status va_free(int device, Address base, uint64_t size) override;
  vmm_status page_create(int device, uint64_t size, Handle* out) override;
  vmm_status page_release(int device, uint64_t size, Handle page) override;
  vmm_status map(int device, Address at, uint64_t size, Handle page) override;
  vmm_status unmap(int device, Address at, uint64_t size) override;
  vmm_status set_access(int device, Address at, uint64_t size) override;
  vmm_status stream_wait(int device, Stream stream, Event event) override;
  vmm_status event_create(int device, Event* out) override;
  vmm_status event_destroy(int device, Event event) override;
  vmm_status event_record(int device, Event event, Stream stream) override;
  vmm_status event_query(int device, Event event) override;
  vmm_status event_sync(int device, Event event) override;
  vmm_status copy_out(int device, void* to, Address from, uint64_t size) override;
  vmm_status copy_in(int device, Address to, const void* from, uint64_t size) override;
  vmm_status page_export(int device, Handle page, int* fd) override;
  void abandon() override;

 private:
  struct Page {
    uint64_t size = 0;
    uint32_t mappings = 0;
    bool released = false;
  };
  // A driver may give the number of a released page to a new one while the old is still mapped, so the
  // model has numbers of its own; the table of mappings speaks of those.
  struct Device {
    MappingTable table;
    std::unordered_map<Handle, uint64_t> known;  // what was created and not released
    std::unordered_map<uint64_t, Page> pages;    // and what was released but is mapped
    uint64_t next_page = 1;
    std::unordered_set<Event> events;
    uint64_t granularity = 1;
    bool alias = true;
  };

  // The rule that such a call breaks, "" if none. Each takes a device that exists.
  std::string why_not_granular(const Device& state, uint64_t size, Address at = 0) const;
  std::string why_not_page(const Device& state, uint64_t size, Handle page) const;
  std::string why_not_map(const Device& state, Address at, uint64_t size, Handle page) const;
  std::string why_not_event(const Device& state, Event event) const;

  // Asks `why` for a broken rule; passes the call on if there is none; after success, `done` keeps the
  // model in step.
  template <class Why, class Down, class Done>
  vmm_status check(const char* call, int device, const Why& why, const Down& down, const Done& done);

  std::vector<Device> devices_;
  std::atomic<bool> dead_{false};
  mutable std::mutex mutex_;  // of violations_
  std::string violations_;
};

}  // namespace vmm

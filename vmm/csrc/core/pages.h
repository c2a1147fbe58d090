// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
//
// Physical pages, and which virtual page each is at home in.

#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "driver.h"

namespace vmm {

struct Region;

using PageId = int32_t;
constexpr PageId kNoPage = -1;

enum class PageState : uint8_t {
  kSpare,        // created, mapped nowhere but perhaps at stale addresses
  kMapped,       // has a home
  kGone,         // released; the record waits to be used again
  kQuarantined,  // the driver left it in a state that nobody knows: never used again
};

struct Page {
  Handle handle = 0;
  PageState state = PageState::kGone;
  uint32_t stale_homes = 0;  // old mappings that still exist
  Region* home = nullptr;
  uint32_t slot = 0;
  std::array<uint16_t, VMM_PIN_REASONS> pins{};

  bool pinned() const { return pins[0] | pins[1] | pins[2] | pins[3]; }
};

struct PagePool {
  std::vector<Page> pages;
  std::vector<PageId> spare;  // state kSpare, the next to use last
  std::vector<PageId> gone;
  uint64_t created = 0, mapped = 0, quarantined = 0;  // created = mapped + spare + quarantined

  Page& operator[](PageId id) { return pages[static_cast<size_t>(id)]; }
  const Page& operator[](PageId id) const { return pages[static_cast<size_t>(id)]; }

  // A record for a page that the driver just created.
  PageId add(Handle handle) {
    PageId id;
    if (gone.empty()) {
      id = static_cast<PageId>(pages.size());
      pages.emplace_back();
    } else {
      id = gone.back();
      gone.pop_back();
    }
    pages[static_cast<size_t>(id)] = Page{};
    pages[static_cast<size_t>(id)].handle = handle;
    pages[static_cast<size_t>(id)].state = PageState::kSpare;
    spare.push_back(id);
    ++created;
    return id;
  }

  // The record of a spare page that the driver just released.
  void drop_spare(size_t index) {
    PageId id = spare[index];
    spare.erase(spare.begin() + static_cast<std::ptrdiff_t>(index));
    pages[static_cast<size_t>(id)] = Page{};
    gone.push_back(id);
    --created;
  }
};

}  // namespace vmm

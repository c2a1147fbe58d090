// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
//
// A plan of page moves carried out on the driver: all of it, or nothing.
//
// Every call is logged with what undoes it. If one fails, the log is played backwards; what cannot be undone
// is named, so that its slots and pages are never used again. No table of the core is touched here.

#pragma once

#include <vector>

#include "core/arena.h"

namespace vmm {

struct Move {
  PageId page = kNoPage;
  Region* from = nullptr;  // null: a spare page
  size_t from_slot = 0;
  Block* from_block = nullptr;  // the free block that holds the last byte of the page
  bool alias = false;           // the old mapping stays until its fence is done
  bool cross_stream = false;
  Region* to = nullptr;  // null: becomes spare
  size_t to_slot = 0;
  vmm_map_cause cause = VMM_CAUSE_POOL;
};

class Remap {
 public:
  Remap(Driver* driver, int device, const PagePool* pages, uint64_t page_size)
      : driver_(driver), device_(device), pages_(pages), page_size_(page_size) {}

  struct Broken {  // what the driver left in an unknown state
    std::vector<PageId> pages;
    struct Place {
      Region* region;
      size_t slot;
      PageId page;
      bool mapped;  // the page is still there, or there without access
    };
    std::vector<Place> slots;
  };

  // `moves` in any order. On failure nothing has happened but what `broken` names.
  vmm_status run(const std::vector<Move>& moves, Broken* broken);

  // One contiguous range at a time, at most 64 MiB each. `done` bytes from the start are unmapped.
  vmm_status unmap(Address at, uint64_t size, uint64_t* done);

 private:
  // Maps a source again. `mapped`: the page is there, but perhaps not accessible.
  bool map_back(const Move& move, bool* mapped);

  Driver* driver_;
  int device_;
  const PagePool* pages_;
  uint64_t page_size_;
};

}  // namespace vmm

// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
//
// The physical memory of a host device: one memory file, in which a page is an offset.

#pragma once

#include <cstdint>
#include <map>
#include <unordered_map>

#include "driver.h"

namespace vmm {

class HostPages {
 public:
  HostPages(uint64_t bytes, uint64_t granularity) : bytes_(bytes), granularity_(granularity) {}
  ~HostPages();
  HostPages(const HostPages&) = delete;
  HostPages& operator=(const HostPages&) = delete;

  vmm_status create(uint64_t size, Handle* out);
  vmm_status release(uint64_t size, Handle page);

  // The size of a page that was created and not released, 0 for any other number.
  uint64_t size_of(Handle page) const;
  uint64_t offset_of(Handle page) const { return (page - 1) * granularity_; }
  void mapped(Handle page) { ++pages_.at(page).mappings; }
  void unmapped(Handle page);

  uint64_t used() const { return used_; }
  uint64_t total() const { return bytes_; }
  int file() const { return file_; }

  // A descriptor of its own that stands at the offset of the page.
  vmm_status open_at(Handle page, int* fd) const;

  // From now on the file is the business of the parent process.
  void abandon() { file_ = -1; }

 private:
  struct Page {
    uint64_t size = 0;
    uint32_t mappings = 0;
    bool released = false;
  };

  vmm_status open_file();
  void give_back(std::unordered_map<Handle, Page>::iterator it);

  const uint64_t bytes_, granularity_;
  int file_ = -1;
  uint64_t used_ = 0;
  std::unordered_map<Handle, Page> pages_;
  std::map<uint64_t, uint64_t> free_;  // offset -> size, no two touch
};

}  // namespace vmm

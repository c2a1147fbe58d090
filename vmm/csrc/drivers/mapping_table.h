// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
//
// What is reserved and mapped on one device, and the rules of the driver contract about it. The host
// driver keeps its mappings here, and the checking decorator what it believes about any driver.

#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "driver.h"

namespace vmm {

class MappingTable {
 public:
  struct Mapping {
    uint64_t size = 0;
    Handle page = 0;
    uint64_t serial = 0;  // no two mappings of a table have the same
    bool access = false;
  };
  using Mappings = std::map<Address, Mapping>;

  // The broken rule, or "" if the call is allowed.
  std::string why_not_free(Address base, uint64_t size) const;
  std::string why_not_map(Address at, uint64_t size) const;
  std::string why_not_unmap(Address at, uint64_t size) const;
  std::string why_not_set_access(Address at, uint64_t size) const;
  // Whether a kernel or a copy may touch the range.
  std::string why_not_touch(Address at, uint64_t size) const;

  // Each only after its rule was asked.
  void reserve(Address base, uint64_t size) { ranges_[base] = size; }
  void free(Address base) { ranges_.erase(base); }
  void map(Address at, uint64_t size, Handle page);
  std::vector<Handle> unmap(Address at, uint64_t size);  // the pages, in order of address
  void set_access(Address at, uint64_t size);

  const std::map<Address, uint64_t>& ranges() const { return ranges_; }
  const Mappings& mappings() const { return mappings_; }
  // The first mapping that ends after `at`.
  Mappings::const_iterator first_after(Address at) const;

 private:
  std::string why_not_covered(Address at, uint64_t size, bool whole) const;

  std::map<Address, uint64_t> ranges_;
  Mappings mappings_;
  uint64_t next_serial_ = 1;
};

}  // namespace vmm

// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
#include "drivers/mapping_table.h"

#include <iterator>

#include "drivers/reason.h"

namespace vmm {
namespace {

std::string range(Address at, uint64_t size) { return "[" + hex(at) + ", " + hex(at + size) + ")"; }

}  // namespace

MappingTable::Mappings::const_iterator MappingTable::first_after(Address at) const {
  auto it = mappings_.upper_bound(at);
  if (it == mappings_.begin()) return it;
  const auto before = std::prev(it);
  return before->first + before->second.size > at ? before : it;
}

std::string MappingTable::why_not_free(Address base, uint64_t size) const {
  const auto found = ranges_.find(base);
  if (found == ranges_.end()) return "no reserved range begins at " + hex(base);
  if (found->second != size) {
    return "the range at " + hex(base) + " has " + std::to_string(found->second) + " bytes, not " +
           std::to_string(size);
  }
  const auto inside = first_after(base);
  if (inside == mappings_.end() || inside->first >= base + size) return "";
  return "the range " + range(base, size) + " still has a page mapped at " + hex(inside->first);
}

std::string MappingTable::why_not_map(Address at, uint64_t size) const {
  const auto above = ranges_.upper_bound(at);
  if (above == ranges_.begin() || std::prev(above)->first + std::prev(above)->second < at + size) {
    return range(at, size) + " is not inside a reserved range";
  }
  const auto other = first_after(at);
  if (other == mappings_.end() || other->first >= at + size) return "";
  return range(at, size) + " overlaps the mapping " + range(other->first, other->second.size);
}

std::string MappingTable::why_not_covered(Address at, uint64_t size, bool whole) const {
  auto it = first_after(at);
  for (Address next = at; next < at + size; ++it) {
    if (it == mappings_.end() || it->first > next) return "nothing is mapped at " + hex(next);
    const Address end = it->first + it->second.size;
    if (whole && (it->first != next || end > at + size)) {
      return range(at, size) + " covers only a part of the mapping " + range(it->first, it->second.size);
    }
    next = end;
  }
  return "";
}

std::string MappingTable::why_not_unmap(Address at, uint64_t size) const { return why_not_covered(at, size, true); }

std::string MappingTable::why_not_set_access(Address at, uint64_t size) const {
  return why_not_covered(at, size, true);
}

std::string MappingTable::why_not_touch(Address at, uint64_t size) const {
  std::string why = why_not_covered(at, size, false);
  if (!why.empty()) return why;
  for (auto it = first_after(at); it != mappings_.end() && it->first < at + size; ++it) {
    if (!it->second.access) return "no access was set for the page at " + hex(it->first);
  }
  return "";
}

void MappingTable::map(Address at, uint64_t size, Handle page) { mappings_[at] = {size, page, next_serial_++, false}; }

std::vector<Handle> MappingTable::unmap(Address at, uint64_t size) {
  std::vector<Handle> pages;
  auto it = mappings_.find(at);
  while (it != mappings_.end() && it->first < at + size) {
    pages.push_back(it->second.page);
    it = mappings_.erase(it);
  }
  return pages;
}

void MappingTable::set_access(Address at, uint64_t size) {
  for (auto it = mappings_.find(at); it != mappings_.end() && it->first < at + size; ++it) it->second.access = true;
}

}  // namespace vmm

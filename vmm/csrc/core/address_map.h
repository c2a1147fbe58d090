// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
//
// Address of a live block -> the block. Open addressing with linear probing; erasing shifts back. No more than
// a quarter is in use: most probes then end where they begin.

#pragma once

#include <cstdint>
#include <vector>

#include "core/block.h"

namespace vmm {

class AddressMap {
 public:
  AddressMap() : slots_(8192) {}

  void insert(uint64_t address, Block* block) {
    if (4 * (count_ + 1) > slots_.size()) grow();
    size_t at = home(address);
    while (slots_[at].block != nullptr) at = (at + 1) & (slots_.size() - 1);
    slots_[at] = {address, block};
    ++count_;
  }

  Block* find(uint64_t address) const {
    for (size_t at = home(address); slots_[at].block != nullptr; at = (at + 1) & (slots_.size() - 1)) {
      if (slots_[at].address == address) return slots_[at].block;
    }
    return nullptr;
  }

  // Removes and returns the block; null if the address is not there.
  Block* take(uint64_t address) {
    size_t mask = slots_.size() - 1;
    size_t at = home(address);
    while (slots_[at].address != address || slots_[at].block == nullptr) {
      if (slots_[at].block == nullptr) return nullptr;
      at = (at + 1) & mask;
    }
    Block* block = slots_[at].block;
    // Fill the hole with the next entry that may stand there.
    for (size_t next = (at + 1) & mask; slots_[next].block != nullptr; next = (next + 1) & mask) {
      if (((next - home(slots_[next].address)) & mask) >= ((next - at) & mask)) {
        slots_[at] = slots_[next];
        at = next;
      }
    }
    slots_[at] = {};
    --count_;
    return block;
  }

  size_t size() const { return count_; }

  template <class F>
  void each(F visit) const {
    for (const Slot& slot : slots_) {
      if (slot.block != nullptr) visit(slot.block);
    }
  }

 private:
  struct Slot {
    uint64_t address = 0;
    Block* block = nullptr;
  };

  size_t home(uint64_t address) const {
    return static_cast<size_t>((address / kUnit * 0x9E3779B97F4A7C15u) >> 20) & (slots_.size() - 1);
  }

  void grow() {
    std::vector<Slot> old(slots_.size() * 2);
    old.swap(slots_);
    count_ = 0;
    for (const Slot& slot : old) {
      if (slot.block != nullptr) insert(slot.address, slot.block);
    }
  }

  std::vector<Slot> slots_;
  size_t count_ = 0;
};

}  // namespace vmm

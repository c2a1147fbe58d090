// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
//
// Free blocks ordered by (size, address), for best fit.
//
// Sizes are cut into bins: one size each below 64 units, then 32 bins per power of two. A bitmap finds the
// next bin that is not empty. A bin of one size is a list, the block freed last in front: remainders of a few
// units are many, and no order among them is worth a search. In the other bins a treap keeps the order; they
// hold few blocks, so that the usual step is a bit scan and one pointer. The priority of the treap is a hash
// of the address: deterministic.

#pragma once

#include <array>
#include <bit>
#include <cstdint>

#include "core/block.h"

namespace vmm {

class FreeIndex {
 public:
  void insert(Block* block) {
    unsigned bin = bin_of(block->size);
    bits_[bin >> 6] |= uint64_t{1} << (bin & 63);
    words_ |= uint64_t{1} << (bin >> 6);
    Block* root = roots_[bin];
    block->left = nullptr;
    if (bin < kExact) {
      block->right = root;
      if (root != nullptr) root->left = block;
      roots_[bin] = block;
    } else {
      block->right = nullptr;
      if (root == nullptr) {
        roots_[bin] = block;
      } else {
        insert_into(&roots_[bin], block);
      }
    }
    ++count_;
    bytes_ += block->size;
  }

  void erase(Block* block) {
    unsigned bin = bin_of(block->size);
    if (bin < kExact) {
      (block->left != nullptr ? block->left->right : roots_[bin]) = block->right;
      if (block->right != nullptr) block->right->left = block->left;
    } else {
      Block** link = &roots_[bin];
      while (*link != block) link = before(block, *link) ? &(*link)->left : &(*link)->right;
      *link = join(block->left, block->right);
    }
    if (roots_[bin] == nullptr) {
      bits_[bin >> 6] &= ~(uint64_t{1} << (bin & 63));
      if (bits_[bin >> 6] == 0) words_ &= ~(uint64_t{1} << (bin >> 6));
    }
    --count_;
    bytes_ -= block->size;
  }

  // The smallest block of at least `size` bytes; among equals the lowest address, below 64 units the one freed
  // last. Null if there is none.
  Block* best(uint64_t size) const {
    if (count_ == 0) return nullptr;
    unsigned bin = bin_of(size);
    if (bin < kExact) {
      bin = next_bin(bin);
      return bin == kBins ? nullptr : bin < kExact ? roots_[bin] : leftmost(roots_[bin]);
    }
    Block* found = nullptr;
    for (Block* node = roots_[bin]; node != nullptr;) {
      if (node->size >= size) {
        found = node;
        node = node->left;
      } else {
        node = node->right;
      }
    }
    if (found != nullptr) return found;
    bin = next_bin(bin + 1);
    return bin == kBins ? nullptr : leftmost(roots_[bin]);
  }

  // Calls `visit(block)` in order from the first block of at least `size` bytes until it returns false.
  template <class F>
  void each_from(uint64_t size, F visit) const {
    for (unsigned bin = next_bin(bin_of(size)); bin != kBins; bin = next_bin(bin + 1)) {
      for (Block* node = bin < kExact ? roots_[bin] : nullptr; node != nullptr; node = node->right) {
        if (!visit(node)) return;
      }
      if (bin < kExact) continue;
      if (!walk(roots_[bin], size, visit)) return;
    }
  }

  bool empty() const { return count_ == 0; }
  uint64_t count() const { return count_; }
  uint64_t bytes() const { return bytes_; }
  uint64_t largest() const {
    uint64_t largest = 0;
    for (unsigned word = 15; word < 16; --word) {
      if (bits_[word] == 0) continue;
      Block* node = roots_[word * 64 + 63 - static_cast<unsigned>(std::countl_zero(bits_[word]))];
      while (node->right != nullptr) node = node->right;
      return node->size;
    }
    return largest;
  }

 private:
  static constexpr unsigned kBins = 1024;
  static constexpr unsigned kExact = 64;  // bins of one size

  static unsigned bin_of(uint64_t size) {
    uint64_t units = size / kUnit;
    if (units < 64) return static_cast<unsigned>(units);
    unsigned exponent = 63u - static_cast<unsigned>(std::countl_zero(units));
    unsigned bin = 64 + (exponent - 6) * 32 + ((units >> (exponent - 5)) & 31);
    return bin < kBins - 1 ? bin : kBins - 1;
  }

  static bool before(const Block* a, const Block* b) {
    return a->size < b->size || (a->size == b->size && a->address < b->address);
  }
  static uint64_t priority(const Block* block) {
    uint64_t x = block->address / kUnit * 0x9E3779B97F4A7C15u;
    return x ^ (x >> 32);
  }
  static Block* leftmost(Block* node) {
    while (node->left != nullptr) node = node->left;
    return node;
  }

  static void insert_into(Block** link, Block* block) {
    uint64_t mine = priority(block);
    while (*link != nullptr && priority(*link) >= mine) link = before(block, *link) ? &(*link)->left : &(*link)->right;
    // Split what hangs there around the new block.
    Block* rest = *link;
    Block** low = &block->left;
    Block** high = &block->right;
    while (rest != nullptr) {
      if (before(rest, block)) {
        *low = rest;
        low = &rest->right;
        rest = rest->right;
      } else {
        *high = rest;
        high = &rest->left;
        rest = rest->left;
      }
    }
    *low = *high = nullptr;
    *link = block;
  }

  static Block* join(Block* low, Block* high) {
    Block* root = nullptr;
    Block** link = &root;
    while (low != nullptr && high != nullptr) {
      if (priority(low) >= priority(high)) {
        *link = low;
        link = &low->right;
        low = low->right;
      } else {
        *link = high;
        link = &high->left;
        high = high->left;
      }
    }
    *link = low != nullptr ? low : high;
    return root;
  }

  unsigned next_bin(unsigned bin) const {
    if (bin >= kBins) return kBins;
    unsigned word = bin >> 6;
    uint64_t bits = bits_[word] & (~uint64_t{0} << (bin & 63));
    if (bits != 0) return word * 64 + static_cast<unsigned>(std::countr_zero(bits));
    if (word == 15) return kBins;
    uint64_t words = words_ & (~uint64_t{0} << (word + 1));
    if (words == 0) return kBins;
    word = static_cast<unsigned>(std::countr_zero(words));
    return word * 64 + static_cast<unsigned>(std::countr_zero(bits_[word]));
  }

  template <class F>
  static bool walk(Block* node, uint64_t size, F& visit) {
    if (node == nullptr) return true;
    if (node->size >= size && !walk(node->left, size, visit)) return false;
    if (node->size >= size && !visit(node)) return false;
    return walk(node->right, size, visit);
  }

  std::array<Block*, kBins> roots_{};
  std::array<uint64_t, 16> bits_{};
  uint64_t words_ = 0, count_ = 0, bytes_ = 0;
};

}  // namespace vmm

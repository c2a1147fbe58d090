// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
#include "memory.h"

#include <algorithm>
#include <mutex>
#include <new>
#include <vector>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace flashmask {
namespace {

constexpr size_t kHuge = size_t{1} << 21;  // from here on blocks are kept, and ask for huge pages
constexpr size_t kMostBlocks = kKeptBytes / kHuge;

struct Kept {
  std::mutex mutex;
  std::vector<Workspace> blocks;  // oldest first
  size_t bytes = 0;
};

// Never destroyed: threads may still work while the process ends.
Kept& kept() {
  static Kept* all = [] {
    Kept* k = new Kept;
    k->blocks.reserve(kMostBlocks);  // giving back must not throw
    return k;
  }();
  return *all;
}

Workspace allocate(size_t bytes) {
  const size_t align = bytes >= kHuge ? kHuge : 64, size = (bytes + align - 1) / align * align;
  Workspace block{std::aligned_alloc(align, size), size};
  if (!block.data) throw std::bad_alloc();
#if defined(__linux__)
  if (size >= kHuge) madvise(block.data, size, MADV_HUGEPAGE);
#endif
  return block;
}

}  // namespace

Workspace take_workspace(size_t bytes) {
  if (bytes == 0) return {};
  if (bytes >= kHuge) {
    Kept& k = kept();
    const std::lock_guard<std::mutex> lock(k.mutex);
    auto best = k.blocks.end();
    for (auto it = k.blocks.begin(); it != k.blocks.end(); ++it) {
      const bool fits = it->bytes >= bytes && it->bytes <= 2 * bytes;
      if (fits && (best == k.blocks.end() || it->bytes < best->bytes)) best = it;
    }
    if (best != k.blocks.end()) {
      const Workspace block = *best;
      k.blocks.erase(best);
      k.bytes -= block.bytes;
      return block;
    }
  }
  return allocate(bytes);
}

void give_back(Workspace block) {
  if (block.bytes < kHuge || block.bytes > kKeptBytes) {
    std::free(block.data);
    return;
  }
  Kept& k = kept();
  const std::lock_guard<std::mutex> lock(k.mutex);
  while (k.bytes + block.bytes > kKeptBytes) {  // the oldest is the least likely to fit the next call
    std::free(k.blocks.front().data);
    k.bytes -= k.blocks.front().bytes;
    k.blocks.erase(k.blocks.begin());
  }
  k.blocks.push_back(block);
  k.bytes += block.bytes;
}

size_t release_kept() {
  Kept& k = kept();
  const std::lock_guard<std::mutex> lock(k.mutex);
  const size_t bytes = k.bytes;
  for (const Workspace& block : k.blocks) std::free(block.data);
  k.blocks.clear();
  k.bytes = 0;
  return bytes;
}

}  // namespace flashmask

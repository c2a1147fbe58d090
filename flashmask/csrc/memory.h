// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
#pragma once

#include <cstdint>
#include <cstdlib>

namespace flashmask {

// Memory for kernels to work in. Large blocks are kept for the next call, up to a limit: a fresh page costs a kernel as
// much to be zeroed by the operating system as it costs to pack a tile into it. Thread-safe.
struct Workspace {
  void* data = nullptr;
  size_t bytes = 0;  // of the block, at least what was asked for
};
Workspace take_workspace(size_t bytes);  // aligned to cache lines; throws std::bad_alloc
void give_back(Workspace block);

constexpr size_t kKeptBytes = size_t{128} << 20;  // most that is kept between calls
size_t release_kept();                            // frees what is kept, returns how many bytes that was

// Uninitialized memory for `count` elements.
template <class T>
class Buffer {
 public:
  explicit Buffer(int64_t count) : block_(take_workspace(static_cast<size_t>(count) * sizeof(T))) {}
  ~Buffer() { give_back(block_); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  T* get() const { return static_cast<T*>(block_.data); }

 private:
  Workspace block_;
};

}  // namespace flashmask

// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
#pragma once

#include <cstdint>
#include <cstdlib>
#include <new>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace flashmask {

// Uninitialized memory for `count` elements, aligned to cache lines. Large blocks ask for huge pages: a kernel touches
// them once, and faulting in 4 KiB at a time would cost as much as packing.
template <class T>
class Buffer {
 public:
  explicit Buffer(int64_t count) {
    const size_t bytes = static_cast<size_t>(count) * sizeof(T);
    const size_t align = bytes >= kHuge ? kHuge : 64;
    if (bytes == 0) return;
    data_ = static_cast<T*>(std::aligned_alloc(align, (bytes + align - 1) / align * align));
    if (!data_) throw std::bad_alloc();
#if defined(__linux__)
    if (bytes >= kHuge) madvise(data_, bytes, MADV_HUGEPAGE);
#endif
  }
  ~Buffer() { std::free(data_); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  T* get() const { return data_; }

 private:
  static constexpr size_t kHuge = size_t{1} << 21;
  T* data_ = nullptr;
};

}  // namespace flashmask

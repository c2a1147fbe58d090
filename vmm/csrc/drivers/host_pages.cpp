// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
#include "drivers/host_pages.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <string>

#include "drivers/reason.h"

namespace vmm {
namespace {

vmm_status system_refused(const char* call) {
  return refuse(errno == ENOMEM || errno == ENOSPC ? VMM_OUT_OF_MEMORY : VMM_DRIVER,
                std::string(call) + " of the memory file failed: " + std::strerror(errno));
}

}  // namespace

HostPages::~HostPages() {
  if (file_ >= 0) close(file_);
}

vmm_status HostPages::open_file() {
  const int file = memfd_create("vmm-host", MFD_CLOEXEC);
  if (file < 0) return system_refused("memfd_create");
  if (ftruncate(file, static_cast<off_t>(bytes_)) != 0) {
    const vmm_status status = system_refused("ftruncate");
    close(file);
    return status;
  }
  file_ = file;
  free_[0] = bytes_;
  return VMM_OK;
}

// The lowest offset first: neighbours in the file that lie side by side in the address space are one
// mapping to the kernel, and the number of those is limited.
vmm_status HostPages::create(uint64_t size, Handle* out) {
  if (file_ < 0) {
    if (const vmm_status status = open_file()) return status;
  }
  const auto it = std::find_if(free_.begin(), free_.end(), [size](const auto& row) { return row.second >= size; });
  if (it == free_.end()) {
    return refuse(VMM_OUT_OF_MEMORY, "no run of " + std::to_string(size) + " bytes is free in the " +
                                         std::to_string(bytes_) + " bytes of the host device, of which " +
                                         std::to_string(used_) + " are in use");
  }
  const auto [offset, free_size] = *it;
  free_.erase(it);
  if (free_size > size) free_[offset + size] = free_size - size;
  used_ += size;
  *out = offset / granularity_ + 1;
  pages_[*out] = {size, 0, false};
  return VMM_OK;
}

uint64_t HostPages::size_of(Handle page) const {
  const auto it = pages_.find(page);
  return it == pages_.end() || it->second.released ? 0 : it->second.size;
}

vmm_status HostPages::release(uint64_t size, Handle page) {
  const uint64_t real = size_of(page);
  if (real == 0) return refuse(VMM_INVALID, "there is no page " + std::to_string(page));
  if (real != size) {
    return refuse(VMM_INVALID, "page " + std::to_string(page) + " has " + std::to_string(real) + " bytes, not " +
                                   std::to_string(size));
  }
  const auto it = pages_.find(page);
  it->second.released = true;
  if (it->second.mappings == 0) give_back(it);
  return VMM_OK;
}

void HostPages::unmapped(Handle page) {
  const auto it = pages_.find(page);
  if (--it->second.mappings == 0 && it->second.released) give_back(it);
}

// A hole that cannot be punched keeps its memory and its content, which a new page may have.
void HostPages::give_back(std::unordered_map<Handle, Page>::iterator it) {
  const uint64_t size = it->second.size;
  uint64_t begin = offset_of(it->first), end = begin + size;
  fallocate(file_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(begin), static_cast<off_t>(size));
  pages_.erase(it);
  used_ -= size;

  auto after = free_.lower_bound(begin);
  if (after != free_.end() && after->first == end) {
    end += after->second;
    after = free_.erase(after);
  }
  if (after != free_.begin()) {
    const auto before = std::prev(after);
    if (before->first + before->second == begin) {
      before->second = end - before->first;
      return;
    }
  }
  free_[begin] = end - begin;
}

vmm_status HostPages::open_at(Handle page, int* fd) const {
  if (size_of(page) == 0) return refuse(VMM_INVALID, "there is no page " + std::to_string(page));
  // A dup would share its position with all the others.
  const std::string path = "/proc/self/fd/" + std::to_string(file_);
  const int own = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (own < 0) return system_refused("open");
  if (lseek(own, static_cast<off_t>(offset_of(page)), SEEK_SET) < 0) {
    const vmm_status status = system_refused("lseek");
    close(own);
    return status;
  }
  *fd = own;
  return VMM_OK;
}

}  // namespace vmm

// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
#include "drivers/host_kernels.h"

#include <algorithm>

#include "drivers/reason.h"

namespace vmm {
namespace {

std::vector<uint64_t> serials_under(const MappingTable& table, const HostKernel& kernel) {
  std::vector<uint64_t> serials;
  const Address end = kernel.at + kernel.size;
  for (auto it = table.first_after(kernel.at); it != table.mappings().end() && it->first < end; ++it) {
    serials.push_back(it->second.serial);
  }
  return serials;
}

// The first and the last word of the range in each page under it: enough to tell whose memory it is,
// and cheap for ranges of any size.
std::vector<Address> words(const MappingTable& table, const HostKernel& kernel) {
  std::vector<Address> result;
  const Address end = kernel.at + kernel.size;
  for (auto it = table.first_after(kernel.at); it != table.mappings().end() && it->first < end; ++it) {
    result.push_back(std::max(it->first, kernel.at));
    result.push_back(std::min(it->first + it->second.size, end) - sizeof(uint64_t));
  }
  return result;
}

}  // namespace

vmm_status HostKernels::queue(const MappingTable& table, const HostKernel& kernel, uint64_t end_ns) {
  if (kernel.size == 0 || (kernel.size | kernel.at) % sizeof(uint64_t) != 0) {
    return refuse(VMM_INVALID, "a kernel touches whole words of 8 bytes, not " + std::to_string(kernel.size) +
                                   " bytes at " + hex(kernel.at));
  }
  if (std::string why = table.why_not_touch(kernel.at, kernel.size); !why.empty()) return refuse(VMM_INVALID, why);
  queued_.emplace(end_ns, Queued{kernel, serials_under(table, kernel)});
  return VMM_OK;
}

std::string HostKernels::why_wrong(const MappingTable& table, const Queued& queued) const {
  const HostKernel& kernel = queued.kernel;
  if (std::string why = table.why_not_touch(kernel.at, kernel.size); !why.empty()) return why;
  if (serials_under(table, kernel) != queued.serials) return "other pages are mapped there now";
  for (const Address word : words(table, kernel)) {
    volatile uint64_t* content = reinterpret_cast<volatile uint64_t*>(word);
    if (kernel.write) {
      *content = kernel.stamp;
    } else if (*content != kernel.stamp) {
      return "the word at " + hex(word) + " is " + hex(*content);
    }
  }
  return "";
}

void HostKernels::run(const MappingTable& table, uint64_t now_ns) {
  while (!queued_.empty() && queued_.begin()->first <= now_ns) {
    const auto node = queued_.extract(queued_.begin());
    const HostKernel& kernel = node.mapped().kernel;
    const std::string why = why_wrong(table, node.mapped());
    if (why.empty()) continue;
    violations_ += "the kernel that " + std::string(kernel.write ? "writes " : "reads ") + hex(kernel.stamp) + " at [" +
                   hex(kernel.at) + ", " + hex(kernel.at + kernel.size) + ") and ends at " +
                   std::to_string(node.key()) + " ns: " + why + "\n";
  }
}

}  // namespace vmm

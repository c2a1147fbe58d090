// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
//
// Work on virtual streams that really touches memory, so that a page which is unmapped, moved or given
// to somebody else too early is noticed, at the same place in every run. A kernel touches its range when
// it ends, the latest moment at which a real one could.

#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "drivers/mapping_table.h"

namespace vmm {

struct HostKernel {
  Address at = 0;
  uint64_t size = 0;   // a multiple of 8
  bool write = false;  // else it reads
  uint64_t stamp = 0;  // the word that it writes, or expects to find
};

class HostKernels {
 public:
  vmm_status queue(const MappingTable& table, const HostKernel& kernel, uint64_t end_ns);
  // Runs what ends until `now_ns`, in order of time.
  void run(const MappingTable& table, uint64_t now_ns);
  // The sentences of all that went wrong so far, one a line.
  const std::string& violations() const { return violations_; }

 private:
  struct Queued {
    HostKernel kernel;
    std::vector<uint64_t> serials;  // of the mappings under the range when it was queued
  };

  std::string why_wrong(const MappingTable& table, const Queued& queued) const;

  std::multimap<uint64_t, Queued> queued_;  // by time; equal times in order of queueing
  std::string violations_;
};

}  // namespace vmm

// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
//
// See fork_memory.h. The kernel's own list of mappings is the one that is right after a fork: the
// tables of the driver may have been cut off in the middle of a change.

#include "torch/fork_memory.h"

#include <dirent.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <string>
#include <vector>

namespace vmm {
namespace {

constexpr char kName[] = "/memfd:vmm-host";

// Open memory files of the host driver by inode.
std::map<unsigned long, int> memory_files() {
  std::map<unsigned long, int> files;
  DIR* folder = opendir("/proc/self/fd");
  if (folder == nullptr) return files;
  while (const dirent* row = readdir(folder)) {
    char target[64] = {};
    if (readlinkat(dirfd(folder), row->d_name, target, sizeof target - 1) < 0) continue;
    if (std::strncmp(target, kName, sizeof kName - 1) != 0) continue;
    const int file = std::atoi(row->d_name);
    struct stat facts;
    if (fstat(file, &facts) == 0) files[facts.st_ino] = file;
  }
  closedir(folder);
  return files;
}

struct Mapping {
  unsigned long begin, end, offset, inode;
  int protection;
};

std::vector<Mapping> shared_mappings() {
  std::vector<Mapping> found;
  std::ifstream list("/proc/self/maps");
  for (std::string line; std::getline(list, line);) {
    if (line.find(kName) == std::string::npos) continue;
    Mapping row{};
    char flags[5] = {};
    const char* form = "%lx-%lx %4s %lx %*s %lu";
    if (std::sscanf(line.c_str(), form, &row.begin, &row.end, flags, &row.offset, &row.inode) != 5) continue;
    if (flags[3] != 's') continue;
    row.protection = (flags[0] == 'r' ? PROT_READ : 0) | (flags[1] == 'w' ? PROT_WRITE : 0);
    found.push_back(row);
  }
  return found;
}

}  // namespace

void keep_writes_from_parent() {
  const auto files = memory_files();
  for (const Mapping& row : shared_mappings()) {
    const auto file = files.find(row.inode);
    if (file == files.end()) continue;
    constexpr int kFlags = MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE;
    void* at = reinterpret_cast<void*>(row.begin);
    mmap(at, row.end - row.begin, row.protection, kFlags, file->second, static_cast<off_t>(row.offset));
  }
}

}  // namespace vmm

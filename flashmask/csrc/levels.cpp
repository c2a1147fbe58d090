// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
#include "levels.h"

#include <atomic>
#include <cstring>

namespace flashmask {
namespace {

#if defined(__x86_64__)
// The builtin also asks the operating system whether it saves the wide registers.
bool has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
}
bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}
bool has_avx512_bf16() { return has_avx512() && __builtin_cpu_supports("avx512bf16"); }
#endif

constexpr Level kLevels[] = {
    {"portable", [] { return true; }, &kernels_portable},
#if defined(__x86_64__)
    {"avx2", &has_avx2, &kernels_avx2},
    {"avx512", &has_avx512, &kernels_avx512},
    {"avx512_bf16", &has_avx512_bf16, &kernels_avx512_bf16},
#endif
};
constexpr int kCount = sizeof(kLevels) / sizeof(kLevels[0]);

const Level* best() {
  const Level* found = &kLevels[0];
  for (const Level& level : kLevels)
    if (level.supported()) found = &level;
  return found;
}

std::atomic<const Level*>& chosen() {
  static std::atomic<const Level*> level{best()};
  return level;
}

}  // namespace

const Level* levels(int* count) {
  *count = kCount;
  return kLevels;
}

const Level& current_level() { return *chosen().load(std::memory_order_relaxed); }

bool set_level(const char* name) {
  for (const Level& level : kLevels) {
    if (std::strcmp(level.name, name) == 0 && level.supported()) {
      chosen().store(&level, std::memory_order_relaxed);
      return true;
    }
  }
  return false;
}

}  // namespace flashmask

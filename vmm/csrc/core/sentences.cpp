// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
//
// See sentences.h.

#include "core/sentences.h"

#include <cstdio>

namespace vmm {
namespace {
// A plain buffer: threads may still fail while their other variables are being destroyed.
thread_local char sentence_of_thread[4096];
}  // namespace

vmm_status fail(vmm_status status, const std::string& sentence) {
  size_t length = sentence.copy(sentence_of_thread, sizeof sentence_of_thread - 1);
  sentence_of_thread[length] = '\0';
  return status;
}

const char* last_error() { return sentence_of_thread; }

std::string bytes_text(uint64_t bytes) {
  const char* units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  int unit = 0;
  while (value >= 1024 && unit < 4) value /= 1024, ++unit;
  char text[64];
  if (unit == 0) {
    std::snprintf(text, sizeof text, "%llu B", static_cast<unsigned long long>(bytes));
  } else {
    std::snprintf(text, sizeof text, "%.2f %s (%llu B)", value, units[unit], static_cast<unsigned long long>(bytes));
  }
  return text;
}

}  // namespace vmm

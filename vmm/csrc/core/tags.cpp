// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
//
// See tags.h.

#include "core/tags.h"

#include <deque>
#include <mutex>
#include <string>
#include <unordered_map>

namespace vmm {
namespace {

struct Tags {
  std::mutex mutex;
  std::deque<std::string> texts{""};  // a deque never moves its elements: pointers stay good
  std::unordered_map<std::string, uint32_t> numbers{{"", 0}};
};

Tags& tags() {
  static Tags* all = new Tags;  // leaked on purpose: threads may outlive static destructors
  return *all;
}

thread_local uint32_t tag_of_thread = 0;

}  // namespace

uint32_t intern_tag(const char* text) {
  Tags& all = tags();
  std::lock_guard lock(all.mutex);
  auto [place, is_new] = all.numbers.try_emplace(text == nullptr ? "" : text, static_cast<uint32_t>(all.texts.size()));
  if (is_new) all.texts.push_back(place->first);
  return place->second;
}

const char* tag_text(uint32_t tag) {
  Tags& all = tags();
  std::lock_guard lock(all.mutex);
  return tag < all.texts.size() ? all.texts[tag].c_str() : nullptr;
}

void lock_tags() { tags().mutex.lock(); }
void unlock_tags() { tags().mutex.unlock(); }

uint32_t tag_of_this_thread() { return tag_of_thread; }

uint32_t set_thread_tag(uint32_t tag) {
  tags_in_use.store(true, std::memory_order_relaxed);
  uint32_t old = tag_of_thread;
  tag_of_thread = tag;
  return old;
}

}  // namespace vmm

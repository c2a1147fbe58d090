// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
//
// Small pieces of text in options: lists, numbers, sizes and times. A value that is none is an empty
// optional, and the caller knows what to say about it.

#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace vmm {

// "a;b" -> a, b. An empty text has no parts, an empty part is a part.
std::vector<std::string_view> split(std::string_view text, char separator);

// The text before the separator, and what is behind it; nothing behind if there is no separator.
struct Cut {
  std::string_view before;
  std::optional<std::string_view> after;
};
Cut cut(std::string_view text, std::string_view separator);

std::optional<uint64_t> parse_number(std::string_view text);  // 12, 0x1f
std::optional<uint64_t> parse_bytes(std::string_view text);   // 512, 64KiB, 3MiB, 2GiB, 1TiB
std::optional<uint64_t> parse_time(std::string_view text);    // 250ns, 1.5us, 3ms, 1s; in ns
std::optional<double> parse_fraction(std::string_view text);  // 0 to 1

}  // namespace vmm

// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
#include "drivers/words.h"

#include <charconv>
#include <utility>

namespace vmm {
namespace {

struct Unit {
  std::string_view name;
  uint64_t factor;
};
// Longer names first: "s" ends "ns" as well.
constexpr Unit kBytes[] = {{"KiB", 1ull << 10}, {"MiB", 1ull << 20}, {"GiB", 1ull << 30}, {"TiB", 1ull << 40}, {"", 1}};
constexpr Unit kTimes[] = {{"ns", 1}, {"us", 1'000}, {"ms", 1'000'000}, {"s", 1'000'000'000}};

template <class Value, class... Base>
std::optional<Value> parse_all(std::string_view text, Base... base) {
  Value value{};
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value, base...);
  if (error != std::errc() || stop != end) return std::nullopt;
  return value;
}

bool take_end(std::string_view* text, std::string_view end) {
  if (!text->ends_with(end)) return false;
  text->remove_suffix(end.size());
  return true;
}

}  // namespace

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  if (text.empty()) return parts;
  while (true) {
    const size_t at = text.find(separator);
    parts.push_back(text.substr(0, at));
    if (at == std::string_view::npos) return parts;
    text.remove_prefix(at + 1);
  }
}

Cut cut(std::string_view text, std::string_view separator) {
  const size_t at = text.find(separator);
  if (at == std::string_view::npos) return {text, std::nullopt};
  return {text.substr(0, at), text.substr(at + separator.size())};
}

std::optional<uint64_t> parse_number(std::string_view text) {
  if (text.starts_with("0x")) return parse_all<uint64_t>(text.substr(2), 16);
  return parse_all<uint64_t>(text, 10);
}

std::optional<uint64_t> parse_bytes(std::string_view text) {
  for (const Unit& unit : kBytes) {
    if (!take_end(&text, unit.name)) continue;
    const std::optional<uint64_t> value = parse_number(text);
    uint64_t bytes = 0;
    if (!value || __builtin_mul_overflow(*value, unit.factor, &bytes)) return std::nullopt;
    return bytes;
  }
  return std::nullopt;
}

std::optional<uint64_t> parse_time(std::string_view text) {
  for (const Unit& unit : kTimes) {
    if (!take_end(&text, unit.name)) continue;
    const std::optional<double> value = parse_all<double>(text, std::chars_format::fixed);
    if (!value || !(*value >= 0 && *value * static_cast<double>(unit.factor) < 1e18)) return std::nullopt;
    return static_cast<uint64_t>(*value * static_cast<double>(unit.factor) + 0.5);
  }
  return std::nullopt;
}

std::optional<double> parse_fraction(std::string_view text) {
  const std::optional<double> value = parse_all<double>(text, std::chars_format::fixed);
  if (!value || !(*value >= 0 && *value <= 1)) return std::nullopt;
  return value;
}

}  // namespace vmm

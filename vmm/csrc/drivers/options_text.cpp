// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
#include "drivers/options_text.h"

#include "drivers/words.h"

namespace vmm {
namespace {

struct TextRow {
  std::string_view name;
  std::string DriverOptions::* field;
};
struct NumberRow {
  std::string_view name;
  uint64_t DriverOptions::* field;
  std::optional<uint64_t> (*parse)(std::string_view);
  std::string_view like;
};
struct SwitchRow {
  std::string_view name;
  bool DriverOptions::* field;
};

constexpr TextRow kTexts[] = {
    {"driver", &DriverOptions::driver}, {"fail", &DriverOptions::fail}, {"latency", &DriverOptions::latency}};
constexpr NumberRow kNumbers[] = {
    {"device_bytes", &DriverOptions::device_bytes, parse_bytes, "a size like 64MiB"},
    {"granularity", &DriverOptions::granularity, parse_bytes, "a size like 64KiB"},
    {"lag_ns", &DriverOptions::lag_ns, parse_number, "a number of nanoseconds"},
};
constexpr SwitchRow kSwitches[] = {
    {"checking", &DriverOptions::checking}, {"counting", &DriverOptions::counting}, {"alias", &DriverOptions::alias}};

std::string must_be(std::string_view name, std::string_view what, std::string_view value) {
  return std::string(name) + " must be " + std::string(what) + ", but is \"" + std::string(value) + "\"";
}

// The broken rule, "" if there is none.
std::string read_option(std::string_view name, std::string_view value, DriverOptions* options) {
  for (const TextRow& row : kTexts) {
    if (row.name != name) continue;
    options->*row.field = value;
    return "";
  }
  for (const NumberRow& row : kNumbers) {
    if (row.name != name) continue;
    const std::optional<uint64_t> number = row.parse(value);
    if (!number) return must_be(name, row.like, value);
    options->*row.field = *number;
    return "";
  }
  for (const SwitchRow& row : kSwitches) {
    if (row.name != name) continue;
    if (value != "0" && value != "1") return must_be(name, "0 or 1", value);
    options->*row.field = value == "1";
    return "";
  }
  if (name != "devices") return "there is no option \"" + std::string(name) + "\"";
  const std::optional<uint64_t> devices = parse_number(value);
  if (!devices || *devices > 1'000'000) return must_be(name, "a number of devices", value);
  options->devices = static_cast<int>(*devices);
  return "";
}

}  // namespace

std::optional<DriverOptions> parse_options(std::string_view text, std::string* error) {
  DriverOptions options;
  for (const std::string_view line : split(text, '\n')) {
    if (line.empty()) continue;
    const auto [name, value] = cut(line, "=");
    *error = value ? read_option(name, *value, &options) : must_be("an option", "like name=value", line);
    if (!error->empty()) return std::nullopt;
  }
  return options;
}

}  // namespace vmm

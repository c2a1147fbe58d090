// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
//
// See config.h. One row per key.

#include "core/config.h"

#include <cmath>
#include <cstdlib>
#include <functional>
#include <map>

namespace vmm {
namespace {

using Setter = std::function<bool(const std::string& value, std::string* rule)>;

bool parse_number(const std::string& text, double* out) {
  char* end = nullptr;
  *out = std::strtod(text.c_str(), &end);
  return !text.empty() && end == text.c_str() + text.size() && std::isfinite(*out);
}

// "2MiB", "20m", "512", "1.5GiB".
bool parse_bytes(const std::string& text, uint64_t* out) {
  size_t digits = text.find_first_not_of("0123456789.");
  double value = 0;
  if (!parse_number(text.substr(0, digits), &value)) return false;
  double scale = 1;
  if (digits != std::string::npos) {
    std::string unit = text.substr(digits);
    const std::map<std::string, double> units = {
        {"B", 1},      {"KiB", 0x1p10}, {"MiB", 0x1p20}, {"GiB", 0x1p30}, {"TiB", 0x1p40}, {"k", 0x1p10}, {"m", 0x1p20},
        {"g", 0x1p30}, {"t", 0x1p40},   {"K", 0x1p10},   {"M", 0x1p20},   {"G", 0x1p30},   {"T", 0x1p40},
    };
    auto found = units.find(unit);
    if (found == units.end()) return false;
    scale = found->second;
  }
  if (value < 0 || value * scale > 0x1p62) return false;
  *out = static_cast<uint64_t>(value * scale);
  return true;
}

Setter bytes(uint64_t* field, uint64_t low = 0) {
  return [=](const std::string& value, std::string* rule) {
    *rule = "a size such as 512, 20MiB or 1.5GiB" + (low ? ", at least " + std::to_string(low) : std::string());
    return parse_bytes(value, field) && *field >= low;
  };
}

Setter whole(uint64_t* field, uint64_t low, uint64_t high) {
  return [=](const std::string& value, std::string* rule) {
    *rule = "a whole number from " + std::to_string(low) + " to " + std::to_string(high);
    double number = 0;
    if (!parse_number(value, &number) || number != std::floor(number)) return false;
    if (number < static_cast<double>(low) || number > static_cast<double>(high)) return false;
    *field = static_cast<uint64_t>(number);
    return true;
  };
}

Setter real(double* field, double low, double high) {
  return [=](const std::string& value, std::string* rule) {
    *rule = "a number from " + std::to_string(low) + " to " + std::to_string(high);
    return parse_number(value, field) && *field >= low && *field <= high;
  };
}

Setter text(std::string* field) {
  return [=](const std::string& value, std::string*) {
    *field = value;
    return true;
  };
}

template <class T>
Setter choice(T* field, std::map<std::string, T> values) {
  return [=](const std::string& value, std::string* rule) {
    *rule = "one of";
    for (const auto& row : values) *rule += " " + row.first;
    auto found = values.find(value);
    if (found == values.end()) return false;
    *field = found->second;
    return true;
  };
}

Setter flag(bool* field) { return choice<bool>(field, {{"0", false}, {"1", true}, {"false", false}, {"true", true}}); }

// Integer fields that are not uint64_t pass through one that is.
template <class T>
Setter small_whole(T* field, uint64_t high) {
  return [=](const std::string& value, std::string* rule) {
    uint64_t number = 0;
    if (!whole(&number, 0, high)(value, rule)) return false;
    *field = static_cast<T>(number);
    return true;
  };
}

std::map<std::string, Setter> keys(Config* c) {
  return {
      {"driver", choice<std::string>(&c->driver.driver, {{"null", "null"}, {"host", "host"}, {"cuda", "cuda"}})},
      {"devices", small_whole(&c->driver.devices, 64)},
      {"device_bytes", bytes(&c->driver.device_bytes)},
      {"granularity", bytes(&c->driver.granularity)},
      {"lag_ns", whole(&c->driver.lag_ns, 0, 1000000000000)},
      {"checking", flag(&c->driver.checking)},
      {"counting", flag(&c->driver.counting)},
      {"fail", text(&c->driver.fail)},
      {"latency", text(&c->driver.latency)},
      {"alias", choice<bool>(&c->driver.alias, {{"0", false}, {"1", true}, {"auto", true}})},
      {"page", bytes(&c->page, 4096)},
      {"small_max", bytes(&c->small_max)},
      {"grow", bytes(&c->grow)},
      {"va_factor", real(&c->va_factor, 1, 64)},
      {"va_factor_small", real(&c->va_factor_small, 0.01, 64)},
      {"policy",
       choice<Policy>(&c->policy, {{"create_first", Policy::kCreateFirst}, {"steal_first", Policy::kStealFirst}})},
      {"soft_slack", real(&c->soft_slack, 0, 10)},
      {"soft_floor", bytes(&c->soft_floor)},
      {"soft_steps", whole(&c->soft_steps, 1, 64)},
      {"limit", bytes(&c->limit)},
      {"fraction", real(&c->fraction, 0, 1)},
      {"reserve_outside", bytes(&c->reserve_outside)},
      {"cross_stream", choice<CrossStream>(&c->cross_stream, {{"never", CrossStream::kNever},
                                                              {"wait", CrossStream::kWait},
                                                              {"wait_above_soft", CrossStream::kWaitAboveSoft}})},
      {"split_min", bytes(&c->split_min, 512)},
      {"whole_block_waste", bytes(&c->whole_block_waste)},
      {"align_large", bytes(&c->align_large)},
      {"oom_rounds", whole(&c->oom_rounds, 0, 100)},
      {"check", small_whole(&c->check, 2)},
  };
}

std::string trimmed(const std::string& text) {
  size_t first = text.find_first_not_of(" \t\n"), last = text.find_last_not_of(" \t\n");
  return first == std::string::npos ? "" : text.substr(first, last - first + 1);
}

}  // namespace

bool parse_config(const std::string& text_, Config* out, std::string* error) {
  auto table = keys(out);
  size_t at = 0;
  while (at < text_.size()) {
    // A value that holds commas itself stands in parentheses.
    size_t comma = text_.find(',', at);
    size_t open = text_.find(":(", at);
    if (open != std::string::npos && open < comma) {
      size_t close = text_.find("),", open);
      if (close == std::string::npos && text_.back() != ')') {
        *error = "config: a parenthesis is not closed in '" + text_.substr(at) + "'";
        return false;
      }
      comma = close == std::string::npos ? text_.size() : close + 1;
    }
    if (comma == std::string::npos) comma = text_.size();
    std::string item = trimmed(text_.substr(at, comma - at));
    at = comma + 1;
    if (item.empty()) continue;
    size_t colon = item.find(':');
    std::string key = trimmed(item.substr(0, colon));
    auto found = table.find(key);
    if (found == table.end()) {
      std::string known;
      for (const auto& row : table) known += (known.empty() ? "" : ", ") + row.first;
      *error = "config: there is no key '" + key + "'. Keys: " + known;
      return false;
    }
    std::string value = colon == std::string::npos ? "" : trimmed(item.substr(colon + 1));
    if (value.size() >= 2 && value.front() == '(' && value.back() == ')') value = value.substr(1, value.size() - 2);
    std::string rule;
    if (!found->second(value, &rule)) {
      *error = "config: " + key + " must be " + rule + ", but is '" + value + "'";
      return false;
    }
  }
  if (out->page % 4096 != 0) {
    *error = "config: page must be a multiple of 4096, but is " + std::to_string(out->page);
    return false;
  }
  if (out->limit != 0 && out->limit < out->page) {
    *error = "config: limit must be at least a page, " + std::to_string(out->page) + ", or 0 for none, but is " +
             std::to_string(out->limit);
    return false;
  }
  return true;
}

}  // namespace vmm

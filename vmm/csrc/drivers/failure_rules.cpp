// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
#include "drivers/failure_rules.h"

#include <algorithm>
#include <array>

#include "drivers/words.h"

namespace vmm {
namespace {

struct ErrorRow {
  std::string_view name;
  vmm_status status;
};
constexpr ErrorRow kErrors[] = {
    {"oom", VMM_OUT_OF_MEMORY}, {"invalid", VMM_INVALID},  {"notready", VMM_NOT_READY},
    {"perm", VMM_DRIVER},       {"lost", VMM_DEVICE_LOST},
};
constexpr std::array kGivesBack = {Call::kUnmap, Call::kRelease, Call::kVaFree, Call::kEventDestroy};

// Each of these returns the broken rule, "" if there is none.

std::string read_call(std::string_view text, FailureRule* rule) {
  if (text == "any") return "";
  rule->call = call_named(text);
  if (rule->call) return "";
  return "the call must be any or one of " + call_names() + ", but is \"" + std::string(text) + "\"";
}

std::string read_chance(std::string_view text, FailureRule* rule) {
  const auto [chance, seed] = cut(text, ",");
  const std::optional<double> probability = parse_fraction(chance);
  if (!probability) return "p must be from 0 to 1, but is \"" + std::string(chance) + "\"";
  rule->where = FailureRule::kChance;
  rule->probability = *probability;
  if (!seed) return "";
  const std::optional<uint64_t> number = seed->starts_with("seed=") ? parse_number(seed->substr(5)) : std::nullopt;
  if (!number) return "behind p there may be seed=NUMBER, but there is \"" + std::string(*seed) + "\"";
  rule->seed = *number;
  return "";
}

std::string read_at(std::string_view text, FailureRule* rule) {
  const auto [from, to] = cut(text, "..");
  const std::optional<uint64_t> begin = parse_number(from), end = to ? parse_number(*to) : std::nullopt;
  if (!begin || !end || *begin >= *end) {
    return "at must be a range of addresses like 0x1000..0x2000, but is \"" + std::string(text) + "\"";
  }
  if (rule->call && !row_of(*rule->call).address) return std::string(row_of(*rule->call).name) + " has no address";
  rule->where = FailureRule::kAt;
  rule->first = *begin;
  rule->last = *end;
  return "";
}

std::string read_over(std::string_view text, FailureRule* rule) {
  const std::optional<uint64_t> bytes = parse_bytes(text);
  if (!bytes) return "over must be a size like 64MiB, but is \"" + std::string(text) + "\"";
  if (rule->call != Call::kCreate) return "over is for create only";
  rule->where = FailureRule::kOver;
  rule->bytes = *bytes;
  return "";
}

std::string read_last(FailureRule* rule) {
  if (!rule->call || std::find(kGivesBack.begin(), kGivesBack.end(), *rule->call) == kGivesBack.end()) {
    return "last is for unmap, release, va_free and event_destroy only";
  }
  rule->where = FailureRule::kLast;
  return "";
}

std::string read_where(std::string_view text, FailureRule* rule) {
  if (text == "last") return read_last(rule);
  const auto [key, value] = cut(text, "=");
  if (value && key == "p") return read_chance(*value, rule);
  if (value && key == "at") return read_at(*value, rule);
  if (value && key == "over") return read_over(*value, rule);
  const auto [from, to] = cut(text, "..");
  const std::optional<uint64_t> first = parse_number(from), last = to ? parse_number(*to) : first;
  if (!first || !last || *first == 0 || *last < *first) {
    return "behind @ there must be 7, 3..5, last, p=, over= or at=, but there is \"" + std::string(text) + "\"";
  }
  rule->where = FailureRule::kRange;
  rule->first = *first;
  rule->last = *last;
  rule->open = !to;
  return "";
}

std::string read_error(std::string_view text, FailureRule* rule) {
  for (const ErrorRow& row : kErrors) {
    if (row.name == text) {
      rule->error = row.status;
      return "";
    }
  }
  return "the error must be oom, invalid, notready, perm or lost, but is \"" + std::string(text) + "\"";
}

std::string read_times(std::string_view text, FailureRule* rule) {
  const std::optional<uint64_t> times = parse_number(text);
  if (!times || *times == 0)
    return "behind * there must be a number from 1, but there is \"" + std::string(text) + "\"";
  rule->times = *times;
  if (rule->open) rule->last = UINT64_MAX;
  return "";
}

std::string read_rule(std::string_view text, FailureRule* rule) {
  const auto [front, times] = cut(text, "*");
  const auto [site, error] = cut(front, ":");
  const auto [call, where] = cut(site, "@");
  std::string why = read_call(call, rule);
  if (why.empty() && where) why = read_where(*where, rule);
  if (why.empty() && error) why = read_error(*error, rule);
  if (why.empty() && times) why = read_times(*times, rule);
  return why;
}

}  // namespace

std::optional<FailureRules> parse_failures(std::string_view text, std::string* error) {
  constexpr std::string_view kLatency = "latency:";
  FailureRules result;
  for (const std::string_view part : split(text, ';')) {
    if (part.starts_with(kLatency)) {
      result.latency += (result.latency.empty() ? "" : ",") + std::string(part.substr(kLatency.size()));
      continue;
    }
    FailureRule rule;
    if (const std::string why = read_rule(part, &rule); !why.empty()) {
      *error = "fail: in the rule \"" + std::string(part) + "\" " + why;
      return std::nullopt;
    }
    result.rules.push_back(rule);
  }
  return result;
}

}  // namespace vmm

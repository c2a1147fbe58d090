// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
//
// DriverOptions as text, one "name=value" a line.

#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "driver.h"

namespace vmm {

// Empty, and a sentence, for a text that breaks a rule.
std::optional<DriverOptions> parse_options(std::string_view text, std::string* error);

}  // namespace vmm

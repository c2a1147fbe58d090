// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
//
// A trace run through a device at full speed, on the logical clock of its driver.

#pragma once

#include "core/device.h"

namespace vmm {

vmm_status replay(Device* device, const vmm_replay_event* events, size_t count, size_t ids, bool stop_at_oom,
                  uint64_t* addresses, vmm_replay_result* result);

}  // namespace vmm

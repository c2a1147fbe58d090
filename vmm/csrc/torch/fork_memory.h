// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
//
// What a child of fork() does with the memory of the host driver that it inherited.

#pragma once

namespace vmm {

// Makes every mapping of a memory file of the host driver private: what this process writes there, the
// parent does not see from now on. Pages that are only read stay shared, and what the parent writes to
// them shows. For the child of fork(), before it does anything else.
void keep_writes_from_parent();

}  // namespace vmm

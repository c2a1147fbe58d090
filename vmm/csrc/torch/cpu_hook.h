// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
//
// Serves torch's CPU tensors from the core. The library has full c10 headers behind it and fits one
// minor version of torch; it is handed the table of the core and links to nothing of ours.

#pragma once

#include "vmm.h"

#ifdef __cplusplus
extern "C" {
#endif

// The version of torch this was compiled for, such as "2.13.0".
VMM_API const char* vmm_cpu_hook_torch(void);

// From now on torch asks `core` for every CPU tensor of at least `min_size` bytes. The core must stay
// open for good: tensors outlive the hook.
VMM_API vmm_status vmm_cpu_hook_install(const vmm_table* table, vmm_allocator* core, uint64_t min_size);

// New tensors come from the allocator that was there before. Living ones stay valid; each gives its
// pages back when it dies.
VMM_API vmm_status vmm_cpu_hook_uninstall(void);

VMM_API int vmm_cpu_hook_installed(void);

// The pool that CPU tensors of the calling thread come from. Returns the old one.
VMM_API uint32_t vmm_cpu_hook_set_pool(uint32_t pool);

// The last refusal of the two functions above in this thread.
VMM_API const char* vmm_cpu_hook_error(void);

#ifdef __cplusplus
}
#endif

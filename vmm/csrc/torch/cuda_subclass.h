// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
//
// Serves torch's CUDA tensors from the core through a class of torch's own, so that statistics,
// snapshots and histories of torch.cuda work. The library fits one minor version of a torch with CUDA.

#pragma once

#include "vmm.h"

#ifdef __cplusplus
extern "C" {
#endif

// The version of torch this was compiled for, such as "2.13.0".
VMM_API const char* vmm_cuda_subclass_torch(void);

// All CUDA tensors of the process come from `core` from now on, which vmm_torch_install has got before;
// `core_library` is the path of the library that it comes from.
VMM_API vmm_status vmm_cuda_subclass_install(const char* core_library, vmm_allocator* core);

// The last refusal in this thread.
VMM_API const char* vmm_cuda_subclass_error(void);

#ifdef __cplusplus
}
#endif

// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
#define FLASHMASK_ISA portable
#include "simd_portable.h"
// The kernels below are written in terms of the Simd above.
#include "kernels_for.h"
#include "levels.h"

namespace flashmask {

// Every dtype is widened to float when it is packed.
const Kernels* kernels_portable(DType) { return portable::kernels_for<portable::DotF32>(); }

}  // namespace flashmask

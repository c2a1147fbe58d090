// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
#define FLASHMASK_ISA avx2
#include "simd_avx2.h"
// The kernels below are written in terms of the Simd above.
#include "kernels_for.h"
#include "levels.h"

namespace flashmask {

// Every dtype is widened to float when it is packed.
const Kernels* kernels_avx2(DType) { return avx2::kernels_for<avx2::DotF32>(); }

}  // namespace flashmask

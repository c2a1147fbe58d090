// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
#define FLASHMASK_ISA avx512_bf16
#include "simd_avx512.h"
// The kernels below are written in terms of the Simd above.
#include "dot_bf16.h"
#include "kernels_for.h"
#include "levels.h"

namespace flashmask {

const Kernels* kernels_avx512_bf16(DType dtype) {
  using namespace avx512_bf16;
  if (dtype == DType::kBFloat16) return kernels_for<DotBF16>();
  return kernels_for<DotF32>();
}

}  // namespace flashmask

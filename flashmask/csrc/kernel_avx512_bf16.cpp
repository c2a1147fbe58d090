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
  if (dtype == DType::kBFloat16) return avx512_bf16::kernels_for<avx512_bf16::DotBF16>();
  return avx512_bf16::kernels_for<avx512_bf16::DotF32>();
}

}  // namespace flashmask

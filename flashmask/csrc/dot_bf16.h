// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
//
// Two bf16 per word, multiplied and summed in pairs by vdpbf16ps (AVX-512 BF16). The instruction flushes denormals.
#pragma once

#include "simd_avx512.h"

namespace flashmask::FLASHMASK_ISA {

struct DotBF16 {
  static constexpr int kPair = 2;
  static constexpr int kExpDegree = 3;  // 7e-5 relative, an order below the rounding of p to bf16
  static Simd::V dot(Simd::V acc, Simd::V a, Simd::V b) {
    return _mm512_dpbf16_ps(acc, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b));
  }
  // Sixteen floats -> sixteen bf16 in eight words.
  static void store_row(uint32_t* dst, Simd::V x) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(dst), reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(x)));
  }
  // Sixteen columns of rows r and r + 1 -> sixteen words, row r in the low half.
  static void store_pairs(uint32_t* dst, Simd::V even, Simd::V odd) {
    const __m512i lo = _mm512_cvtepu16_epi32(reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(even)));
    const __m512i hi = _mm512_cvtepu16_epi32(reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(odd)));
    _mm512_storeu_si512(dst, _mm512_or_si512(lo, _mm512_slli_epi32(hi, 16)));
  }
};

}  // namespace flashmask::FLASHMASK_ISA

// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
//
// Eight-lane arithmetic for AVX2 with FMA and F16C. See simd_avx512.h for the meaning of each function.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "simd_scalar.h"

namespace flashmask::FLASHMASK_ISA {

struct Simd {
  using V = __m256;
  static constexpr int W = 8;
  static constexpr int kRows = 6, kVecs = 2, kRowsT = 4, kVecsT = 2;

  static V zero() { return _mm256_setzero_ps(); }
  static V set1(float x) { return _mm256_set1_ps(x); }
  static V load(const float* p) { return _mm256_loadu_ps(p); }
  static void store(float* p, V x) { _mm256_storeu_ps(p, x); }
  static V load_words(const uint32_t* p) { return _mm256_loadu_ps(reinterpret_cast<const float*>(p)); }
  static V broadcast_word(const uint32_t* p) { return _mm256_broadcast_ss(reinterpret_cast<const float*>(p)); }
  static V add(V a, V b) { return _mm256_add_ps(a, b); }
  static V sub(V a, V b) { return _mm256_sub_ps(a, b); }
  static V mul(V a, V b) { return _mm256_mul_ps(a, b); }
  static V fma(V a, V b, V c) { return _mm256_fmadd_ps(a, b, c); }
  static V max(V a, V b) { return _mm256_max_ps(a, b); }
  static float reduce_add(V a) { return scalar::reduce_add<W>(reinterpret_cast<const float*>(&a)); }
  static float reduce_max(V a) { return scalar::reduce_max<W>(reinterpret_cast<const float*>(&a)); }
  static bool any_greater(V a, V b) { return _mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_GT_OQ)) != 0; }

  // Below 2^-126 the result is flushed to zero, and so is -inf; NaN stays NaN.
  static V fraction(V x) {
    const V c = _mm256_max_ps(_mm256_set1_ps(-127.0f), x);  // a NaN in the second operand survives max
    return _mm256_sub_ps(c, _mm256_floor_ps(c));
  }
  static V scale_by_exponent(V mantissa, V x) {
    const V small = _mm256_cmp_ps(x, _mm256_set1_ps(-126.0f), _CMP_LT_OQ);
    const __m256i e = _mm256_cvtps_epi32(_mm256_floor_ps(_mm256_max_ps(_mm256_set1_ps(-127.0f), x)));
    const __m256i bits = _mm256_slli_epi32(_mm256_add_epi32(e, _mm256_set1_epi32(127)), 23);
    return _mm256_andnot_ps(small, _mm256_mul_ps(mantissa, _mm256_castsi256_ps(bits)));
  }

  struct Bounds {
    __m256i lts, lte, uts, ute;
  };
  static Bounds load_bounds(const int32_t* lts, const int32_t* lte, const int32_t* uts, const int32_t* ute) {
    const auto at = [](const int32_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); };
    return {at(lts), at(lte), at(uts), at(ute)};
  }
  static void hide(float* s, const Bounds& b, int32_t row, float value) {
    const __m256i r = _mm256_set1_epi32(row);
    const __m256i lower = _mm256_andnot_si256(_mm256_cmpgt_epi32(b.lts, r), _mm256_cmpgt_epi32(b.lte, r));
    const __m256i upper = _mm256_andnot_si256(_mm256_cmpgt_epi32(b.uts, r), _mm256_cmpgt_epi32(b.ute, r));
    _mm256_maskstore_ps(s, _mm256_or_si256(lower, upper), _mm256_set1_ps(value));
  }

  static void half_to_float(const uint16_t* src, float* dst, int n) {
    int i = 0;
    for (; i + 8 <= n; i += 8)
      _mm256_storeu_ps(dst + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(src + i))));
    for (; i < n; ++i) dst[i] = _cvtsh_ss(src[i]);
  }
  static void float_to_half(const float* src, uint16_t* dst, int n) {
    int i = 0;
    for (; i + 8 <= n; i += 8)
      _mm_storeu_si128(reinterpret_cast<__m128i*>(dst + i), _mm256_cvtps_ph(_mm256_loadu_ps(src + i), 0));
    for (; i < n; ++i) dst[i] = _cvtss_sh(src[i], 0);
  }
  static void transpose16(const uint32_t* src, int64_t src_stride, uint32_t* dst, int64_t dst_stride) {
    scalar::transpose16(src, src_stride, dst, dst_stride);
  }
};

}  // namespace flashmask::FLASHMASK_ISA

// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
//
// Sixteen-lane arithmetic for AVX-512 F/BW/VL/DQ. Every `simd_*.h` defines the same struct `Simd`.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "types.h"

namespace flashmask::FLASHMASK_ISA {

struct Simd {
  using V = __m512;
  static constexpr int W = 16;
  // Register tiles: accumulators (rows x vectors) of the row-major products and of the transposed ones.
  static constexpr int kRows = 6, kVecs = 4, kRowsT = 8, kVecsT = 3;

  static V zero() { return _mm512_setzero_ps(); }
  static V set1(float x) { return _mm512_set1_ps(x); }
  static V load(const float* p) { return _mm512_loadu_ps(p); }
  static void store(float* p, V x) { _mm512_storeu_ps(p, x); }
  static V load_words(const uint32_t* p) { return _mm512_loadu_ps(p); }
  static V broadcast_word(const uint32_t* p) { return _mm512_castsi512_ps(_mm512_set1_epi32(static_cast<int>(*p))); }
  static V add(V a, V b) { return _mm512_add_ps(a, b); }
  static V sub(V a, V b) { return _mm512_sub_ps(a, b); }
  static V mul(V a, V b) { return _mm512_mul_ps(a, b); }
  static V fma(V a, V b, V c) { return _mm512_fmadd_ps(a, b, c); }
  static V max(V a, V b) { return _mm512_max_ps(a, b); }
  static float reduce_add(V a) { return _mm512_reduce_add_ps(a); }
  static float reduce_max(V a) { return _mm512_reduce_max_ps(a); }
  static bool any_greater(V a, V b) { return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ) != 0; }

  // x = floor(x) + f; scalef applies the floor by itself. Reduce gives f = 0 for -inf, and scalef by -inf gives 0.
  static V fraction(V x) { return _mm512_reduce_ps(x, 0x09); }
  static V scale_by_exponent(V mantissa, V x) { return _mm512_scalef_ps(mantissa, x); }

  // s[0..W) = -inf where row lies in [lts, lte) or [uts, ute) of its column.
  struct Bounds {
    __m512i lts, lte, uts, ute;
  };
  static Bounds load_bounds(const int32_t* lts, const int32_t* lte, const int32_t* uts, const int32_t* ute) {
    return {_mm512_loadu_si512(lts), _mm512_loadu_si512(lte), _mm512_loadu_si512(uts), _mm512_loadu_si512(ute)};
  }
  static void hide(float* s, const Bounds& b, int32_t row, float value) {
    const __m512i r = _mm512_set1_epi32(row);
    const __mmask16 lower = _mm512_mask_cmplt_epi32_mask(_mm512_cmpge_epi32_mask(r, b.lts), r, b.lte);
    const __mmask16 upper = _mm512_mask_cmplt_epi32_mask(_mm512_cmpge_epi32_mask(r, b.uts), r, b.ute);
    _mm512_mask_storeu_ps(s, static_cast<__mmask16>(lower | upper), _mm512_set1_ps(value));
  }

  static void half_to_float(const uint16_t* src, float* dst, int n) {
    int i = 0;
    for (; i + 16 <= n; i += 16)
      _mm512_storeu_ps(dst + i, _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(src + i))));
    for (; i < n; ++i) dst[i] = _cvtsh_ss(src[i]);
  }
  static void float_to_half(const float* src, uint16_t* dst, int n) {
    int i = 0;
    for (; i + 16 <= n; i += 16)
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(dst + i), _mm512_cvtps_ph(_mm512_loadu_ps(src + i), 0));
    for (; i < n; ++i) dst[i] = _cvtss_sh(src[i], 0);
  }

  // dst[j][i] = src[i][j] for a 16 x 16 block of words.
  static void transpose16(const uint32_t* src, int64_t src_stride, uint32_t* dst, int64_t dst_stride) {
    __m512i r[16], t[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) r[i] = _mm512_loadu_si512(src + i * src_stride);
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) {
      t[2 * i] = _mm512_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
      t[2 * i + 1] = _mm512_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      r[4 * i] = _mm512_unpacklo_epi64(t[4 * i], t[4 * i + 2]);
      r[4 * i + 1] = _mm512_unpackhi_epi64(t[4 * i], t[4 * i + 2]);
      r[4 * i + 2] = _mm512_unpacklo_epi64(t[4 * i + 1], t[4 * i + 3]);
      r[4 * i + 3] = _mm512_unpackhi_epi64(t[4 * i + 1], t[4 * i + 3]);
    }
    // r[4 * g + c] lane l holds column 4 * l + c of rows 4 * g ..; gather the lanes of the four groups.
#pragma GCC unroll 4
    for (int c = 0; c < 4; ++c) {
      const __m512i a = _mm512_shuffle_i32x4(r[c], r[4 + c], 0x88), b = _mm512_shuffle_i32x4(r[8 + c], r[12 + c], 0x88);
      const __m512i d = _mm512_shuffle_i32x4(r[c], r[4 + c], 0xdd), e = _mm512_shuffle_i32x4(r[8 + c], r[12 + c], 0xdd);
      _mm512_storeu_si512(dst + c * dst_stride, _mm512_shuffle_i32x4(a, b, 0x88));
      _mm512_storeu_si512(dst + (8 + c) * dst_stride, _mm512_shuffle_i32x4(a, b, 0xdd));
      _mm512_storeu_si512(dst + (4 + c) * dst_stride, _mm512_shuffle_i32x4(d, e, 0x88));
      _mm512_storeu_si512(dst + (12 + c) * dst_stride, _mm512_shuffle_i32x4(d, e, 0xdd));
    }
  }
};

}  // namespace flashmask::FLASHMASK_ISA

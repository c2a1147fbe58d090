// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
//
// Scores of fp16 inputs in fixed point (AVX-512 VNNI). There is no fp16 dot product with fp32 sums before AVX-512 FP16,
// and widening to fp32 halves the rate. A row of q and a column of k are divided by their largest element and rounded
// to whole numbers up to the largest for which `dim` products still fit an int32 sum: 4095 at 128, 5792 at 64, 10922
// at 17. An element is thus off by at most 2^-13 of the largest, a fourth of what that one was rounded by when it
// became fp16.
#pragma once

#include "scores.h"

namespace flashmask::FLASHMASK_ISA {

struct FixedScores {
  static constexpr int kMaxDim = 128;
  static constexpr int kExpDegree = 3;  // 7e-5 relative, below the rounding of an fp16 result

  struct Dot {
    static Simd::V dot(Simd::V acc, Simd::V a, Simd::V b) {
      return _mm512_castsi512_ps(
          _mm512_dpwssd_epi32(_mm512_castps_si512(acc), _mm512_castps_si512(a), _mm512_castps_si512(b)));
    }
  };

  static int words(int dim) { return (dim + 1) / 2; }
  // The words, then what a unit of each row or column is worth.
  static int64_t query_words(int dim) { return static_cast<int64_t>(kTile) * (words(dim) + 1); }
  static int64_t key_words(int dim) { return static_cast<int64_t>(kTile) * (words(dim) + 1); }

  template <class Zero>
  static void pack_query(const Rows& src, int count, uint32_t* dst, const ScaledQuery& scaled, Zero zero) {
    float* unit = reinterpret_cast<float*>(dst + static_cast<int64_t>(kTile) * words(src.dim));
    for (int i = 0; i < count; ++i) {
      uint32_t* row = dst + static_cast<int64_t>(i) * words(src.dim);
      if (scaled.erase || zero(i)) {
        std::fill(row, row + words(src.dim), 0u);
        unit[i] = 0.0f;
      } else {
        unit[i] = load_fixed(src.at(i), src.dim, row, words(src.dim)) * (scaled.negate ? -1.0f : 1.0f);
      }
    }
  }
  template <class Zero>
  static void pack_keys(const Rows& src, int count, uint32_t* dst, Zero zero) {
    float* unit = reinterpret_cast<float*>(dst + static_cast<int64_t>(kTile) * words(src.dim));
    std::fill(unit, unit + kTile, 0.0f);
    transpose_rows(words(src.dim), count, dst, [&](int i, uint32_t* row, int padded) {
      if (zero(i)) {
        std::fill(row, row + padded, 0u);
      } else {
        unit[i] = load_fixed(src.at(i), src.dim, row, padded);
      }
    });
  }
  template <int MR>
  static void product(int dim, const uint32_t* query, int g, const uint32_t* keys, int first, int vectors,
                      float* scores) {
    const int w = words(dim);
    product_rows<Dot, MR, Simd::kVecs, false>(query + static_cast<int64_t>(g) * w, w, 1, keys + first, kTile,
                                              scores + first, kTile, w, vectors);
    const float* row_unit = reinterpret_cast<const float*>(query + static_cast<int64_t>(kTile) * w) + g;
    const float* column_unit = reinterpret_cast<const float*>(keys + static_cast<int64_t>(kTile) * w) + first;
    for (int n = 0; n < vectors * Simd::W; n += Simd::W) {
      const __m512 unit = _mm512_loadu_ps(column_unit + n);
      for (int i = 0; i < MR; ++i) {
        float* s = scores + i * kTile + first + n;
        const __m512 sum = _mm512_cvtepi32_ps(_mm512_loadu_si512(s));
        _mm512_storeu_ps(s, _mm512_mul_ps(sum, _mm512_mul_ps(unit, _mm512_set1_ps(row_unit[i]))));
      }
    }
  }

 private:
  // n halves -> pairs of int16; returns the worth of a unit, NaN if the row holds anything that is not finite.
  static float load_fixed(const char* src, int n, uint32_t* dst, int words) {
    alignas(64) float x[kMaxDim + 32];
    Simd::half_to_float(reinterpret_cast<const uint16_t*>(src), x, n);
    std::fill(x + n, x + round_up(2 * words, 32), 0.0f);
    __m512 largest = _mm512_setzero_ps();
    __mmask16 odd = 0;
    for (int d = 0; d < n; d += 16) {
      const __m512 v = _mm512_loadu_ps(x + d);
      largest = _mm512_max_ps(largest, _mm512_abs_ps(v));
      odd |= _mm512_fpclass_ps_mask(v, 0x99);  // NaN or infinite
    }
    const float top = _mm512_reduce_max_ps(largest);
    if (odd || top == 0.0f) {
      std::fill(dst, dst + words, 0u);
      return odd ? std::numeric_limits<float>::quiet_NaN() : 0.0f;
    }
    const float limit = static_cast<float>(std::min(32767.0, std::floor(std::sqrt(2147483647.0 / n))));
    const __m512 scale = _mm512_set1_ps(limit / top);
    for (int d = 0; d < 2 * words; d += 16) {
      const __m512i fixed = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x + d), scale));
      alignas(32) int16_t pairs[16];
      _mm256_store_si256(reinterpret_cast<__m256i*>(pairs), _mm512_cvtepi32_epi16(fixed));
      std::memcpy(dst + d / 2, pairs, std::min(16, 2 * words - d) * 2);
    }
    return top / limit;
  }
};

}  // namespace flashmask::FLASHMASK_ISA

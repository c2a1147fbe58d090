// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
//
// Small matrix products on packed 32-bit words, the only place where the flops are.
//
// A word is one float, or two bf16 that lie next to each other along the summed dimension. The left operand is read one
// word at a time and broadcast, so it may have any strides; the right operand is read a vector of columns at a time:
//
//   c[i][n] (+)= sum over k of a[i * a_row + k * a_k] . b[k * b_k + n]      i < MR, n < 16 * units
#pragma once

#include <cstdint>

namespace flashmask::FLASHMASK_ISA {

// One float per word.
struct DotF32 {
  static constexpr int kPair = 1;       // elements of the summed dimension in a word
  static constexpr int kExpDegree = 5;  // 7e-8 relative
  static Simd::V dot(Simd::V acc, Simd::V a, Simd::V b) { return Simd::fma(a, b, acc); }
};

template <class Dot, int MR, int NR, bool kAccumulate>
inline void product_tile(const uint32_t* a, int64_t a_row, int64_t a_k, const uint32_t* b, int64_t b_k, float* c,
                         int64_t c_row, int64_t depth) {
  using V = Simd::V;
  V acc[MR][NR];
#pragma GCC unroll 16
  for (int i = 0; i < MR; ++i)
#pragma GCC unroll 8
    for (int j = 0; j < NR; ++j) acc[i][j] = kAccumulate ? Simd::load(c + i * c_row + j * Simd::W) : Simd::zero();
  for (int64_t k = 0; k < depth; ++k) {
    V right[NR];
#pragma GCC unroll 8
    for (int j = 0; j < NR; ++j) right[j] = Simd::load_words(b + j * Simd::W);
#pragma GCC unroll 16
    for (int i = 0; i < MR; ++i) {
      const V left = Simd::broadcast_word(a + i * a_row);
#pragma GCC unroll 8
      for (int j = 0; j < NR; ++j) acc[i][j] = Dot::dot(acc[i][j], left, right[j]);
    }
    a += a_k;
    b += b_k;
  }
#pragma GCC unroll 16
  for (int i = 0; i < MR; ++i)
#pragma GCC unroll 8
    for (int j = 0; j < NR; ++j) Simd::store(c + i * c_row + j * Simd::W, acc[i][j]);
}

// MR rows by any number of vectors, NR vectors at a time.
template <class Dot, int MR, int NR, bool kAccumulate>
inline void product_rows(const uint32_t* a, int64_t a_row, int64_t a_k, const uint32_t* b, int64_t b_k, float* c,
                         int64_t c_row, int64_t depth, int vectors) {
  int n = 0;
  for (; n + NR <= vectors; n += NR)
    product_tile<Dot, MR, NR, kAccumulate>(a, a_row, a_k, b + n * Simd::W, b_k, c + n * Simd::W, c_row, depth);
  if constexpr (NR > 1) {
    if (n < vectors)
      product_rows<Dot, MR, NR - 1, kAccumulate>(a, a_row, a_k, b + n * Simd::W, b_k, c + n * Simd::W, c_row, depth,
                                                 vectors - n);
  }
}

// 2^x for x <= about 100: -inf gives 0, NaN stays NaN. Minimax polynomials of 2^f on [0, 1) in relative error.
template <int kDegree>
inline Simd::V exp2(Simd::V x) {
  static_assert(kDegree == 3 || kDegree == 5);
  using V = Simd::V;
  const V f = Simd::fraction(x);
  V p;
  if constexpr (kDegree == 3) {
    p = Simd::fma(Simd::set1(0.07802452147006989f), f, Simd::set1(0.22606715559959412f));
    p = Simd::fma(p, f, Simd::set1(0.6958335638046265f));
    p = Simd::fma(p, f, Simd::set1(0.9999251961708069f));
  } else {
    p = Simd::fma(Simd::set1(0.0018775766948238015f), f, Simd::set1(0.00898933969438076f));
    p = Simd::fma(p, f, Simd::set1(0.05582631751894951f));
    p = Simd::fma(p, f, Simd::set1(0.24015361070632935f));
    p = Simd::fma(p, f, Simd::set1(0.6931530833244324f));
    p = Simd::fma(p, f, Simd::set1(0.9999999403953552f));
  }
  return Simd::scale_by_exponent(p, x);
}

}  // namespace flashmask::FLASHMASK_ISA

// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
//
// How scores q . k^T are made: packed query rows times packed, transposed keys.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "microkernel.h"
#include "pack.h"

namespace flashmask::FLASHMASK_ISA {

// How the softmax scale enters the exponent. The kernels want a positive factor (so that -inf stays -inf and the
// maximum stays the maximum): a negative scale flips the sign of the query, and zero becomes the smallest factor, under
// which every finite score weighs the same and NaN is still NaN.
struct ScaledQuery {
  static constexpr float kLog2E = 1.44269504088896340736f;
  float size;    // |scale|, not 0
  float factor;  // the same for powers of two, finite
  bool negate;
  explicit ScaledQuery(float scale) : negate(scale < 0.0f) {
    size = std::max(std::fabs(scale), std::numeric_limits<float>::min());
    factor = std::min(size * kLog2E, std::numeric_limits<float>::max());
  }
};

template <class Dot>
struct Scores {
  static int words(int dim) { return Pack<Dot>::row_words(dim); }
  static int64_t query_words(int dim) { return static_cast<int64_t>(kTile) * words(dim); }
  static int64_t key_words(int dim) { return static_cast<int64_t>(kTile) * words(dim); }

  template <class Zero>
  static void pack_query(const Rows& src, int count, uint32_t* dst, const ScaledQuery& scaled, Zero zero) {
    Pack<Dot>::rows(src, count, dst, words(src.dim), zero);
    constexpr uint32_t kSigns = Dot::kPair == 2 ? 0x80008000u : 0x80000000u;
    if (scaled.negate)
      for (int64_t i = 0; i < static_cast<int64_t>(count) * words(src.dim); ++i) dst[i] ^= kSigns;
  }
  template <class Zero>
  static void pack_keys(const Rows& src, int count, uint32_t* dst, Zero zero) {
    Pack<Dot>::transposed(src, count, dst, zero);
  }
  // scores[MR][kTile], columns from `first` on, of query rows g .. g + MR - 1.
  template <int MR>
  static void product(int dim, const uint32_t* query, int g, const uint32_t* keys, int first, int vectors,
                      float* scores) {
    const int w = words(dim);
    product_rows<Dot, MR, Simd::kVecs, false>(query + static_cast<int64_t>(g) * w, w, 1, keys + first, kTile,
                                              scores + first, kTile, w, vectors);
  }
};

}  // namespace flashmask::FLASHMASK_ISA

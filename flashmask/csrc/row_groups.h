// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
//
// A tile is worked on in groups of a few rows, as many as the register tile has. Inside a partial tile each group looks
// at the columns in units of 16 and leaves out what it cannot see, so that a diagonal costs little more than its area.
#pragma once

#include <bit>
#include <cstdint>
#include <utility>

#include "plan.h"

namespace flashmask::FLASHMASK_ISA {

// Rows of the next group when `left` rows are left. Even while `left` is even, and never a lone row after a full group.
inline int next_group(int left) {
  constexpr int kRows = Simd::kRows;
  if (left >= 2 * kRows || left <= kRows) return left < kRows ? left : kRows;
  const int half = (left + 1) / 2;
  return half + (half & 1);
}

// Calls f.template operator()<MR>() with MR = rows, 1 <= rows <= Simd::kRows.
template <int MR = Simd::kRows, class F>
inline void with_rows(int rows, F&& f) {
  if constexpr (MR == 1) {
    f.template operator()<1>();
  } else {
    if (rows == MR) {
      f.template operator()<MR>();
    } else {
      with_rows<MR - 1>(rows, std::forward<F>(f));
    }
  }
}

// The units of one tile that a group of rows sees: [lo, hi), and which of those need masking.
struct Visible {
  int lo, hi;
  uint32_t masked;
  static Visible all() { return {0, kUnitsPerTile, 0}; }
};

inline Visible visible_units(const Stats& units, int64_t first_unit, int32_t r0, int32_t r1) {
  int32_t seen[kUnitsPerTile], partial[kUnitsPerTile];
  const int32_t* s = units.base + first_unit;
  const int64_t n = units.stride;
  for (int u = 0; u < kUnitsPerTile; ++u) {  // `classify` without branches
    const int32_t skip = ((r0 >= s[n + u]) & (r1 <= s[2 * n + u])) | ((r0 >= s[5 * n + u]) & (r1 <= s[6 * n + u]));
    partial[u] = ((r0 < s[3 * n + u]) & (r1 > s[u])) | ((r0 < s[7 * n + u]) & (r1 > s[4 * n + u]));
    seen[u] = skip ^ 1;
  }
  uint32_t seen_bits = 0, masked = 0;
  for (int u = 0; u < kUnitsPerTile; ++u) {
    seen_bits |= static_cast<uint32_t>(seen[u]) << u;
    masked |= static_cast<uint32_t>(partial[u]) << u;
  }
  if (seen_bits == 0) return {0, 0, 0};
  return {std::countr_zero(seen_bits), 32 - std::countl_zero(seen_bits), masked | ~seen_bits};
}

// -inf into the scores s[rows][kTile] of the masked units.
template <int MR>
inline void mask_scores(float* s, const Visible& v, const PlanView& plan, int64_t first_col, int32_t row, float value) {
  for (int u = v.lo; u < v.hi; ++u) {
    if (!(v.masked >> u & 1)) continue;
    for (int w = 0; w < kUnit; w += Simd::W) {
      const int64_t at = first_col + u * kUnit + w;
      const auto bounds =
          Simd::load_bounds(plan.bound(kLts) + at, plan.bound(kLte) + at, plan.bound(kUts) + at, plan.bound(kUte) + at);
      for (int i = 0; i < MR; ++i) Simd::hide(s + i * kTile + u * kUnit + w, bounds, row + i, value);
    }
  }
}

}  // namespace flashmask::FLASHMASK_ISA

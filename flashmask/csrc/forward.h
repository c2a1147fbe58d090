// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
//
// Forward: softmax(scale * q . k^T + mask) . v for one tile of query rows of one head, online over the key tiles
// (Milakov & Gimelshein 2018; Dao et al., FlashAttention, 2022).
//
// The running maximum is only moved when a score exceeds it by 2^8: until then exp2 cannot overflow, and neither the
// sums nor the output have to be rescaled. Key tiles are visited in ascending order, so the result does not depend on
// the number of threads.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

#include "kernel.h"
#include "microkernel.h"
#include "pack.h"
#include "row_groups.h"
#include "scores.h"

namespace flashmask::FLASHMASK_ISA {

// Columns that no row of any mask head of a kv head can see: their keys and values may hold anything, even NaN.
struct DeadColumns {
  const Problem& p;
  int64_t b, hk, first;
  bool operator()(int64_t i) const {
    const PlanLayout at(p.seqlen_q, p.seqlen_k);
    const int64_t heads = p.plan_heads <= p.heads_k ? 1 : p.plan_heads / p.heads_k;
    const int64_t h0 = hk * p.plan_heads / p.heads_k;
    for (int64_t h = h0; h < h0 + heads; ++h) {
      const int32_t* x = p.plan + ((p.plan_batch == 1 ? 0 : b) * p.plan_heads + h) * at.length + at.bounds + first + i;
      const int32_t lts = x[kLts * at.cols], lte = x[kLte * at.cols], uts = x[kUts * at.cols], ute = x[kUte * at.cols];
      const bool hidden = (lts <= 0 && lte >= p.seqlen_q) || (uts <= 0 && ute >= p.seqlen_q) ||
                          (uts <= 0 && lts <= ute && lte >= p.seqlen_q);
      if (!hidden) return false;
    }
    return true;
  }
};

// `Scores` makes the scores (scores.h), `Dot` multiplies the weights with the values.
template <class Scores, class Dot>
struct Forward {
  static constexpr int kVectorsPerUnit = kUnit / Simd::W;

  static int value_columns(const Problem& p) { return static_cast<int>(round_up(p.dim_v, kUnit)); }
  static int64_t key_words(const Problem& p) { return Scores::key_words(p.dim); }
  static int64_t packed_words(const Problem& p) {
    return key_words(p) + static_cast<int64_t>(kTile / Dot::kPair) * value_columns(p);
  }

  // Column tile c of kv head hk.
  static void pack(const ForwardProblem& p, int64_t b, int64_t hk, int64_t c, uint32_t* dst) {
    const int64_t first = c * kTile;
    const int count = static_cast<int>(std::min<int64_t>(kTile, p.seqlen_k - first));
    const DeadColumns dead{p, b, hk, first};
    Scores::pack_keys(rows_of(p.k, p.dtype, p.dim, b, hk, first), count, dst, dead);
    Pack<Dot>::paired(rows_of(p.v, p.dtype, p.dim_v, b, hk, first), count, dst + key_words(p), value_columns(p), dead);
  }

  static int64_t scratch_words(const Problem& p) {
    return Scores::query_words(p.dim) + static_cast<int64_t>(kTile) * (value_columns(p) + Simd::W + 2) +
           2 * static_cast<int64_t>(Simd::kRows) * kTile;
  }

  // Rows of tile r of query head h. `packed` holds the column tiles of its kv head.
  static void run(const ForwardProblem& p, int64_t b, int64_t h, int64_t r, const uint32_t* packed, uint32_t* scratch) {
    using V = Simd::V;
    const int dv = value_columns(p);
    const int64_t row0 = r * kTile;
    const int rows = static_cast<int>(std::min<int64_t>(kTile, p.seqlen_q - row0));
    const PlanView plan = plan_of(p, b, h);
    const Stats tile_stats = plan.tiles(), unit_stats = plan.units();
    const ScaledQuery scaled(p.scale);

    uint32_t* q = scratch;
    float* acc = reinterpret_cast<float*>(q + Scores::query_words(p.dim));
    float* sum = acc + static_cast<int64_t>(kTile) * dv;  // [kTile][W] partial sums
    float* top = sum + kTile * Simd::W;                   // maximum that the exponents are taken from
    float* limit = top + kTile;                           // raw score that moves it
    float* scores = limit + kTile;                        // [kRows][kTile]
    uint32_t* weights = reinterpret_cast<uint32_t*>(scores + Simd::kRows * kTile);

    Scores::pack_query(rows_of(p.q, p.dtype, p.dim, b, h, row0), rows, q, scaled, [](int) { return false; });
    constexpr float kInf = std::numeric_limits<float>::infinity();
    std::fill(acc, sum + kTile * Simd::W, 0.0f);
    std::fill(top, top + 2 * kTile, -kInf);

    const V factor = Simd::set1(scaled.factor);
    const float inverse_factor = 1.0f / scaled.factor;
    const int64_t col_tiles = plan.layout.col_tiles;
    const int64_t tile_words = packed_words(p);
    const KeptTiles kept(p, b, h, r);

    for (int64_t c = 0; c < col_tiles; ++c) {
      const TileClass kind =
          kept(c) ? classify(tile_stats, c, static_cast<int32_t>(row0), static_cast<int32_t>(row0 + rows)) : kSkip;
      if (kind == kSkip) continue;
      const uint32_t* keys = packed + c * tile_words;
      const uint32_t* values = keys + key_words(p);

      for (int g = 0, size; g < rows; g += size) {
        size = next_group(rows - g);
        const int32_t row = static_cast<int32_t>(row0 + g);
        const Visible seen =
            kind == kFull ? Visible::all() : visible_units(unit_stats, c * kUnitsPerTile, row, row + size);
        if (seen.lo == seen.hi) continue;
        const int first = seen.lo * kUnit, units = seen.hi - seen.lo;

        with_rows(size, [&]<int MR>() {
          Scores::template product<MR>(p.dim, q, g, keys, first, units * kVectorsPerUnit, scores);
          if (seen.masked) mask_scores<MR>(scores, seen, plan, c * kTile, row, -kInf);

          for (int i = 0; i < MR; ++i) {
            float* s = scores + i * kTile;
            V highest = Simd::load(s + first);
            for (int n = first + Simd::W; n < seen.hi * kUnit; n += Simd::W)
              highest = Simd::max(highest, Simd::load(s + n));
            if (Simd::any_greater(highest, Simd::set1(limit[g + i]))) {
              move_maximum(Simd::reduce_max(highest) * scaled.factor, inverse_factor, top[g + i], limit[g + i],
                           sum + (g + i) * Simd::W, acc + static_cast<int64_t>(g + i) * dv, dv);
            }
            const V shift = Simd::set1(top[g + i] == -kInf ? 0.0f : -top[g + i]);
            V total = Simd::load(sum + (g + i) * Simd::W);
            for (int n = first; n < seen.hi * kUnit; n += Simd::W) {
              const V weight = exp2<Scores::kExpDegree>(Simd::fma(Simd::load(s + n), factor, shift));
              total = Simd::add(total, weight);
              if constexpr (Dot::kPair == 2) {
                Dot::store_row(weights + (i * kTile + n) / 2, weight);
              } else {
                Simd::store(s + n, weight);
              }
            }
            Simd::store(sum + (g + i) * Simd::W, total);
          }

          const uint32_t* left = Dot::kPair == 2 ? weights : reinterpret_cast<const uint32_t*>(scores);
          product_rows<Dot, MR, Simd::kVecs, true>(
              left + first / Dot::kPair, kTile / Dot::kPair, 1, values + static_cast<int64_t>(first / Dot::kPair) * dv,
              dv, acc + static_cast<int64_t>(g) * dv, dv, units * kUnit / Dot::kPair, dv / Simd::W);
        });
      }
    }

    const int64_t size = dtype_size(p.dtype);
    for (int i = 0; i < rows; ++i) {
      float* row = acc + static_cast<int64_t>(i) * dv;
      const float total = Simd::reduce_add(Simd::load(sum + i * Simd::W));
      const bool empty = total == 0.0f;  // a NaN total is not empty: it must be seen
      const float inverse = empty ? 0.0f : 1.0f / total;
      for (int d = 0; d < dv; d += Simd::W) Simd::store(row + d, Simd::mul(Simd::load(row + d), Simd::set1(inverse)));
      if (empty) std::fill(row, row + dv, 0.0f);
      const int64_t at = (b * p.seqlen_q + row0 + i) * p.heads_q + h;
      store_float_row(row, p.dtype, p.dim_v, p.out + at * p.dim_v * size);
      p.lse[(b * p.heads_q + h) * p.seqlen_q + row0 + i] =
          empty ? -kInf : (top[i] + std::log2(total)) * 0.69314718055994530942f;
    }
  }

 private:
  static void move_maximum(float highest, float inverse_factor, float& top, float& limit, float* sum, float* acc,
                           int dv) {
    constexpr float kHeadroom = 8.0f;  // log2 of the largest weight before the maximum moves
    const float rescale = std::exp2(top - highest);
    for (int d = 0; d < Simd::W; ++d) sum[d] *= rescale;
    for (int d = 0; d < dv; d += Simd::W) Simd::store(acc + d, Simd::mul(Simd::load(acc + d), Simd::set1(rescale)));
    top = highest;
    limit = (highest + kHeadroom) * inverse_factor;
  }
};

}  // namespace flashmask::FLASHMASK_ISA

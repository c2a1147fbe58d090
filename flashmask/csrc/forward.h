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
                          (uts <= 0 && lts <= ute && lte >= p.seqlen_q) ||
                          (lts <= 0 && uts <= lte && ute >= p.seqlen_q);
      if (!hidden) return false;
    }
    return true;
  }
};

template <class Dot>
struct Forward {
  static int value_columns(const Problem& p) { return static_cast<int>(round_up(p.dim_v, kUnit)); }
  static int64_t key_words(const Problem& p) { return Scores<Dot>::key_words(p.dim); }
  static int64_t packed_words(const Problem& p) {
    return key_words(p) + static_cast<int64_t>(kTile / Dot::kPair) * value_columns(p);
  }

  // Column tile c of kv head hk.
  static void pack(const ForwardProblem& p, int64_t b, int64_t hk, int64_t c, uint32_t* dst) {
    const int64_t first = c * kTile;
    const int count = static_cast<int>(std::min<int64_t>(kTile, p.seqlen_k - first));
    const DeadColumns dead{p, b, hk, first};
    Scores<Dot>::pack_keys(rows_of(p.k, p.dtype, p.dim, b, hk, first), count, dst, dead);
    Pack<Dot>::paired(rows_of(p.v, p.dtype, p.dim_v, b, hk, first), count, dst + key_words(p), value_columns(p), dead);
  }

  static int64_t scratch_words(const Problem& p) {
    return Scores<Dot>::query_words(p.dim) + static_cast<int64_t>(kTile) * (value_columns(p) + Simd::W + 1) +
           2 * static_cast<int64_t>(Simd::kRows) * kTile;
  }

  // Rows of tile r of query head h. `packed` holds the column tiles of its kv head.
  static void run(const ForwardProblem& p, int64_t b, int64_t h, int64_t r, const uint32_t* packed, uint32_t* scratch) {
    const int64_t first_row = r * kTile;
    const int32_t row0 = static_cast<int32_t>(first_row);
    const int rows = static_cast<int>(std::min<int64_t>(kTile, p.seqlen_q - first_row));
    const PlanView plan = plan_of(p, b, h);
    const Stats tile_stats = plan.tiles(), unit_stats = plan.units();
    const ScaledQuery scaled(p.scale);
    const State state(p, scratch, scaled);
    Scores<Dot>::pack_query(rows_of(p.q, p.dtype, p.dim, b, h, first_row), rows, state.q, scaled,
                            [](int) { return false; });

    const KeptTiles kept(p, b, h, r);
    for (int64_t c = 0; c < plan.layout.col_tiles; ++c) {
      const TileClass kind = kept(c) ? classify(tile_stats, c, row0, row0 + rows) : kSkip;
      if (kind == kSkip) continue;
      const uint32_t* keys = packed + c * packed_words(p);
      const uint32_t* values = keys + key_words(p);
      for (int g = 0, size; g < rows; g += size) {
        size = next_group(rows - g);
        const int32_t row = row0 + g;
        const Visible seen =
            kind == kFull ? Visible::all() : visible_units(unit_stats, c * kUnitsPerTile, row, row + size);
        if (seen.lo == seen.hi) continue;
        with_rows(size, [&]<int MR>() {
          const int first = seen.lo * kUnit, last = seen.hi * kUnit;
          Scores<Dot>::template product<MR>(p.dim, state.q, g, keys, first, (last - first) / Simd::W, state.scores);
          if (seen.masked) mask_scores<MR>(state.scores, seen, plan, c * kTile, row, -kInfinity);
          for (int i = 0; i < MR; ++i) weigh(state, g + i, i, first, last);
          product_rows<Dot, MR, Simd::kVecs, true>(state.weights + first / Dot::kPair, kTile / Dot::kPair, 1,
                                                   values + static_cast<int64_t>(first / Dot::kPair) * state.columns,
                                                   state.columns, state.out(g), state.columns,
                                                   (last - first) / Dot::kPair, state.columns / Simd::W);
        });
      }
    }
    for (int i = 0; i < rows; ++i) finish(p, state, b, h, first_row + i, i);
  }

 private:
  static constexpr float kInfinity = std::numeric_limits<float>::infinity();
  static constexpr float kHeadroom = 8.0f;  // log2 of the largest weight before the maximum moves

  // What is known of the rows of a tile, in scratch memory.
  struct State {
    int columns;        // of the output, whole units
    float factor;       // of the exponent
    uint32_t* q;        // packed query rows
    float* acc;         // [kTile][columns] weights times values so far
    float* sum;         // [kTile][W] partial sums of the weights
    float* top;         // [kTile] score that the exponents are taken from
    float* scores;      // [kRows][kTile]
    uint32_t* weights;  // [kRows][kTile / pair] left operand of the second product

    State(const Problem& p, uint32_t* scratch, const ScaledQuery& scaled)
        : columns(value_columns(p)), factor(scaled.factor), q(scratch) {
      acc = reinterpret_cast<float*>(q + Scores<Dot>::query_words(p.dim));
      sum = acc + static_cast<int64_t>(kTile) * columns;
      top = sum + kTile * Simd::W;
      scores = top + kTile;
      weights = reinterpret_cast<uint32_t*>(scores + Simd::kRows * kTile);
      std::fill(acc, top, 0.0f);
      std::fill(top, scores, -kInfinity);
    }
    float* out(int i) const { return acc + static_cast<int64_t>(i) * columns; }
  };

  // Scores of one row in columns [first, last) -> weights. `row` counts in the tile, `i` in the group.
  static void weigh(const State& state, int row, int i, int first, int last) {
    const float* s = state.scores + i * kTile;
    // Until a row has seen anything there is no maximum to begin with. Later ones rarely have to move: hope first.
    const bool settled = state.top[row] == -kInfinity;
    if (settled) move_top(state, row, highest_score(s, first, last));
    if (try_weigh(state, row, i, first, last, settled)) return;
    move_top(state, row, highest_score(s, first, last));
    try_weigh(state, row, i, first, last, true);
  }

  // False, and nothing is added to the sum, if an exponent went beyond what an unsettled maximum allows.
  static bool try_weigh(const State& state, int row, int i, int first, int last, bool settled) {
    using V = Simd::V;
    const float* s = state.scores + i * kTile;
    // The difference first: scores of any size then cancel exactly, where factor * score - top would leave a rounding.
    const V factor = Simd::set1(state.factor);
    const V top = Simd::set1(state.top[row] == -kInfinity ? 0.0f : state.top[row]);
    V total = Simd::load(state.sum + row * Simd::W);
    V highest = Simd::set1(-kInfinity);
    for (int n = first; n < last; n += Simd::W) {
      const V exponent = Simd::mul(Simd::sub(Simd::load(s + n), top), factor);
      const V weight = exp2<Dot::kExpDegree>(exponent);
      highest = Simd::max(highest, exponent);
      total = Simd::add(total, weight);
      if constexpr (Dot::kPair == 2) {
        Dot::store_row(state.weights + (i * kTile + n) / 2, weight);
      } else {
        Simd::store(reinterpret_cast<float*>(state.weights) + i * kTile + n, weight);
      }
    }
    if (!settled && Simd::any_greater(highest, Simd::set1(kHeadroom))) return false;
    Simd::store(state.sum + row * Simd::W, total);
    return true;
  }

  static float highest_score(const float* s, int first, int last) {
    Simd::V highest = Simd::load(s + first);
    for (int n = first + Simd::W; n < last; n += Simd::W) highest = Simd::max(highest, Simd::load(s + n));
    return Simd::reduce_max(highest);
  }

  static void move_top(const State& state, int row, float highest) {
    if (!(highest > state.top[row])) return;  // nothing visible yet, or only NaN
    const float rescale = std::exp2((state.top[row] - highest) * state.factor);
    float* sum = state.sum + row * Simd::W;
    for (int d = 0; d < Simd::W; ++d) sum[d] *= rescale;
    scale(state.out(row), state.columns, rescale);
    state.top[row] = highest;
  }

  static void scale(float* x, int n, float factor) {
    for (int d = 0; d < n; d += Simd::W) Simd::store(x + d, Simd::mul(Simd::load(x + d), Simd::set1(factor)));
  }

  static void finish(const ForwardProblem& p, const State& state, int64_t b, int64_t h, int64_t row, int i) {
    const float total = Simd::reduce_add(Simd::load(state.sum + i * Simd::W));
    const bool empty = total == 0.0f;  // a NaN total is not empty: it must be seen
    if (empty) {
      std::fill(state.out(i), state.out(i) + state.columns, 0.0f);
    } else {
      scale(state.out(i), state.columns, 1.0f / total);
    }
    const int64_t at = (b * p.seqlen_q + row) * p.heads_q + h;
    store_float_row(state.out(i), p.dtype, p.dim_v, p.out + at * p.dim_v * dtype_size(p.dtype));
    p.lse[(b * p.heads_q + h) * p.seqlen_q + row] =
        empty ? -kInfinity : (state.top[i] * state.factor + std::log2(total)) * 0.69314718055994530942f;
  }
};

}  // namespace flashmask::FLASHMASK_ISA

// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
//
// Backward: five products per tile, as in FlashAttention-2 (Dao 2023), with one owner for every sum:
//
//   p  = exp2(s - lse)      ds = p * (dp - delta)      delta = rowsum(dout * out) - dlse
//   dv += p^T . dout        dk += ds^T . q             dq += ds . k
//
// A task owns a run of column tiles of one kv head, for some or all query heads of its group, and walks their rows. dq
// goes to a buffer of the run; dk and dv go to a buffer of the heads unless the task has all of them. The buffers are
// added in ascending order afterwards. How tasks are cut depends on the shapes only, so every gradient is bitwise the
// same for any number of threads.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "backward_task.h"
#include "forward.h"

namespace flashmask::FLASHMASK_ISA {

template <class Dot>
struct Backward {
  static constexpr int kPair = Dot::kPair;
  static constexpr int kVectorsPerUnit = kUnit / Simd::W;
  static constexpr int kTilePairs = kTile / kPair;

  static int key_words(const Problem& p) { return Pack<Dot>::row_words(p.dim); }
  static int value_words(const Problem& p) { return Pack<Dot>::row_words(p.dim_v); }
  static int key_columns(const Problem& p) { return static_cast<int>(round_up(p.dim, kUnit)); }
  static int value_columns(const Problem& p) { return static_cast<int>(round_up(p.dim_v, kUnit)); }

  // What the column tiles want to know of one row tile of one query head, packed once.
  struct RowPack {
    uint32_t *q, *grad_out;              // [kTile][words], left operands of the scores and of dp
    uint32_t *q_pairs, *grad_out_pairs;  // [kTilePairs][columns], right operands of dk and dv
    float *lse, *delta;                  // [kTile]
    RowPack(const Problem& p, uint32_t* at) {
      q = at;
      grad_out = q + static_cast<int64_t>(kTile) * key_words(p);
      q_pairs = grad_out + static_cast<int64_t>(kTile) * value_words(p);
      grad_out_pairs = q_pairs + static_cast<int64_t>(kTilePairs) * key_columns(p);
      lse = reinterpret_cast<float*>(grad_out_pairs + static_cast<int64_t>(kTilePairs) * value_columns(p));
      delta = lse + kTile;
    }
  };
  static int64_t query_columns(const Problem& p) { return key_columns(p); }
  static int64_t dq_words(const Problem& p) { return static_cast<int64_t>(kTile) * key_columns(p); }
  static int64_t key_value_columns(const Problem& p) { return key_columns(p) + value_columns(p); }
  static int64_t row_words(const Problem& p) {
    return static_cast<int64_t>(kTile) * (key_words(p) + value_words(p) + 2) +
           static_cast<int64_t>(kTilePairs) * (key_columns(p) + value_columns(p));
  }

  static void pack(const BackwardProblem& p, int64_t b, int64_t h, int64_t r, uint32_t* dst) {
    constexpr float kInf = std::numeric_limits<float>::infinity();
    const RowPack to(p, dst);
    const int64_t row0 = r * kTile;
    const int count = static_cast<int>(std::min<int64_t>(kTile, p.seqlen_q - row0));
    const float* lse = p.lse + (b * p.heads_q + h) * p.seqlen_q + row0;
    const float* grad_lse = p.grad_lse ? p.grad_lse + (b * p.heads_q + h) * p.seqlen_q + row0 : nullptr;
    // A row that saw nothing adds nothing, whatever its query and gradient hold.
    const auto blind = [&](int i) { return i >= count || lse[i] == -kInf; };
    const ScaledQuery scaled(p.scale);

    const Rows q = rows_of(p.q, p.dtype, p.dim, b, h, row0);
    const Rows out = rows_of(p.out, p.dtype, p.dim_v, b, h, row0);
    const Rows grad_out = rows_of(p.grad_out, p.dtype, p.dim_v, b, h, row0);
    Scores<Dot>::pack_query(q, kTile, to.q, scaled, blind);
    Pack<Dot>::rows(grad_out, kTile, to.grad_out, value_words(p), blind);
    Pack<Dot>::paired(q, kTile, to.q_pairs, key_columns(p), blind);
    Pack<Dot>::paired(grad_out, kTile, to.grad_out_pairs, value_columns(p), blind);

    alignas(64) float x[kMaxHeadDim], y[kMaxHeadDim];
    for (int i = 0; i < kTile; ++i) {
      to.lse[i] = blind(i) ? kInf : lse[i];  // exp(anything - inf) = 0
      to.delta[i] = 0.0f;
      if (blind(i)) continue;
      load_float_row(out.at(i), p.dtype, p.dim_v, x);
      load_float_row(grad_out.at(i), p.dtype, p.dim_v, y);
      float part[16] = {};  // a fixed order of summation that also vectorizes
      for (int d = 0; d < p.dim_v; ++d) part[d % 16] += x[d] * y[d];
      for (int w = 8; w > 0; w /= 2)
        for (int d = 0; d < w; ++d) part[d] += part[d + w];
      to.delta[i] = part[0] - (grad_lse ? grad_lse[i] : 0.0f);
    }
  }

  struct Scratch {
    uint32_t *keys, *values, *key_pairs;  // the column tile: transposed k and v, paired k
    float *grad_k, *grad_v;               // [kTile][columns]
    uint32_t *p_pairs, *ds_pairs;         // [unit][kTilePairs][kUnit], left operands of dv and dk
    uint32_t* ds;                         // [kTile][kTilePairs], left operand of dq
    float *scores, *dp;                   // [kRows][kTile]
    int64_t words = 0;
    // Without memory, only `words` is to be used.
    explicit Scratch(const Problem& p, uint32_t* memory = nullptr) {
      const auto take = [&](int64_t n) {
        uint32_t* at = memory ? memory + words : nullptr;
        words += n;
        return at;
      };
      const auto take_floats = [&](int64_t n) { return reinterpret_cast<float*>(take(n)); };
      keys = take(static_cast<int64_t>(key_words(p)) * kTile);
      values = take(static_cast<int64_t>(value_words(p)) * kTile);
      key_pairs = take(static_cast<int64_t>(kTilePairs) * key_columns(p));
      grad_k = take_floats(static_cast<int64_t>(kTile) * key_columns(p));
      grad_v = take_floats(static_cast<int64_t>(kTile) * value_columns(p));
      p_pairs = take(kTilePairs * kTile);
      ds_pairs = take(kTilePairs * kTile);
      ds = take(kTilePairs * kTile);
      scores = take_floats(Simd::kRows * kTile);
      dp = take_floats(Simd::kRows * kTile);
    }
  };
  static int64_t scratch_words(const Problem& p) { return Scratch(p).words; }

  static void run(const BackwardProblem& p, const BackwardTask& task, uint32_t* memory) {
    Scratch s(p, memory);
    for (int64_t i = 0; i < (task.last_head - task.first_head) * row_tiles_of(p); ++i) {
      float* share = task.grad_q + task.slots[i] * dq_words(p);
      if (task.slots[i] != kNoSlot) std::fill(share, share + dq_words(p), 0.0f);
    }
    for (int64_t c = task.first_tile; c < task.last_tile; ++c) {
      const int64_t first = c * kTile;
      const int count = static_cast<int>(std::min<int64_t>(kTile, p.seqlen_k - first));
      if (task.grad_kv) {
        s.grad_k = task.grad_kv + c * kTile * key_value_columns(p);
        s.grad_v = s.grad_k + static_cast<int64_t>(kTile) * key_columns(p);
      }
      std::fill(s.grad_k, s.grad_k + static_cast<int64_t>(kTile) * key_columns(p), 0.0f);
      std::fill(s.grad_v, s.grad_v + static_cast<int64_t>(kTile) * value_columns(p), 0.0f);
      bool packed = false;
      for (int64_t h = task.first_head; h < task.last_head; ++h) {
        const PlanView plan = plan_of(p, task.batch, h);
        for (int64_t r = 0; r < row_tiles_of(p); ++r) {
          if (!KeptTiles(p, task.batch, h, r)(c)) continue;
          const int32_t row0 = static_cast<int32_t>(r * kTile);
          const int rows = static_cast<int>(std::min<int64_t>(kTile, p.seqlen_q - row0));
          const TileClass kind = classify(plan.tiles(), c, row0, row0 + rows);
          if (kind == kSkip) continue;
          if (!packed) {
            const DeadColumns dead{p, task.batch, task.kv_head, first};
            const Rows k = rows_of(p.k, p.dtype, p.dim, task.batch, task.kv_head, first);
            Pack<Dot>::transposed(k, count, s.keys, dead);
            Pack<Dot>::transposed(rows_of(p.v, p.dtype, p.dim_v, task.batch, task.kv_head, first), count, s.values,
                                  dead);
            Pack<Dot>::paired(k, count, s.key_pairs, key_columns(p), dead);
            packed = true;
          }
          const int64_t local = (h - task.first_head) * row_tiles_of(p) + r;
          const RowPack row_pack(p, task.rows + local * row_words(p));
          float* grad_q = task.grad_q + task.slots[local] * dq_words(p);
          tile(p, plan, c, row0, rows, kind, row_pack, s, grad_q);
        }
      }
      if (!task.grad_kv) store_key_value(p, task.batch, task.kv_head, c, s.grad_k, s.grad_v);
    }
  }

  // Adds up what the groups of query heads left for one column tile, in order: parts [kTile][columns of k, then of v].
  static void finish_key_value(const BackwardProblem& p, int64_t b, int64_t hk, int64_t c, float* const* parts,
                               int64_t count) {
    const int64_t n = kTile * key_value_columns(p);
    for (int64_t k = 1; k < count; ++k)
      for (int64_t x = 0; x < n; ++x) parts[0][x] += parts[k][x];
    store_key_value(p, b, hk, c, parts[0], parts[0] + static_cast<int64_t>(kTile) * key_columns(p));
  }

  // Adds up what the runs left for one row tile, in order.
  static void finish_query(const BackwardProblem& p, int64_t b, int64_t h, int64_t r, const float* const* parts,
                           int64_t count) {
    const int columns = key_columns(p);
    const int64_t row0 = r * kTile, size = dtype_size(p.dtype);
    const int rows = static_cast<int>(std::min<int64_t>(kTile, p.seqlen_q - row0));
    alignas(64) float sum[kMaxHeadDim];
    for (int i = 0; i < rows; ++i) {
      std::fill(sum, sum + columns, 0.0f);
      const bool blind = p.lse[(b * p.heads_q + h) * p.seqlen_q + row0 + i] == -std::numeric_limits<float>::infinity();
      if (!blind) {
        for (int64_t k = 0; k < count; ++k) {
          const float* x = parts[k] + static_cast<int64_t>(i) * columns;
          for (int d = 0; d < columns; ++d) sum[d] += x[d];
        }
        for (int d = 0; d < columns; ++d) sum[d] *= p.scale;
      }
      store_float_row(sum, p.dtype, p.dim, p.grad_q + ((b * p.seqlen_q + row0 + i) * p.heads_q + h) * p.dim * size);
    }
  }

 private:
  static void store_key_value(const BackwardProblem& p, int64_t b, int64_t hk, int64_t c, float* grad_k,
                              const float* grad_v) {
    const int64_t first = c * kTile, size = dtype_size(p.dtype);
    const int count = static_cast<int>(std::min<int64_t>(kTile, p.seqlen_k - first));
    for (int i = 0; i < count; ++i) {
      const int64_t at = (b * p.seqlen_k + first + i) * p.heads_k + hk;
      float* gk = grad_k + static_cast<int64_t>(i) * key_columns(p);
      for (int d = 0; d < p.dim; ++d) gk[d] *= p.scale;
      store_float_row(gk, p.dtype, p.dim, p.grad_k + at * p.dim * size);
      store_float_row(grad_v + static_cast<int64_t>(i) * value_columns(p), p.dtype, p.dim_v,
                      p.grad_v + at * p.dim_v * size);
    }
  }

  // One tile: scores and dp by row groups, then the three products that sum over them.
  static void tile(const BackwardProblem& p, const PlanView& plan, int64_t c, int32_t row0, int rows, TileClass kind,
                   const RowPack& in, const Scratch& s, float* grad_q) {
    using V = Simd::V;
    constexpr float kInf = std::numeric_limits<float>::infinity();
    const int kw = key_words(p), vw = value_words(p), kc = key_columns(p), vc = value_columns(p);
    const V scale = Simd::set1(ScaledQuery(p.scale).size);
    const Stats unit_stats = plan.units();
    const int padded = static_cast<int>(round_up(rows, kPair));  // the row after the last is packed as blind

    int seen_from[kUnitsPerTile], seen_to[kUnitsPerTile];
    std::fill(seen_from, seen_from + kUnitsPerTile, kTile);
    std::fill(seen_to, seen_to + kUnitsPerTile, 0);
    struct Group {
      int row, size, first, units;
    } groups[kTile];
    int group_count = 0;

    for (int g = 0, size; g < padded; g += size) {
      size = next_group(padded - g);
      const int32_t row = row0 + g;
      const int32_t stop = row0 + std::min(g + size, rows);
      const Visible seen = kind == kFull ? Visible::all() : visible_units(unit_stats, c * kUnitsPerTile, row, stop);
      for (int u = 0; u < kUnitsPerTile; ++u) {
        if (u >= seen.lo && u < seen.hi) {
          seen_from[u] = std::min(seen_from[u], g);
          seen_to[u] = g + size;
        } else {
          const int64_t at = (static_cast<int64_t>(u) * kTilePairs + g / kPair) * kUnit;
          std::fill(s.p_pairs + at, s.p_pairs + at + size / kPair * kUnit, 0u);
          std::fill(s.ds_pairs + at, s.ds_pairs + at + size / kPair * kUnit, 0u);
        }
      }
      if (seen.lo == seen.hi) continue;
      const int first = seen.lo * kUnit, vectors = (seen.hi - seen.lo) * kVectorsPerUnit;
      groups[group_count++] = {g, size, first, seen.hi - seen.lo};

      with_rows(size, [&]<int MR>() {
        product_rows<Dot, MR, Simd::kVecs, false>(in.q + static_cast<int64_t>(g) * kw, kw, 1, s.keys + first, kTile,
                                                  s.scores + first, kTile, kw, vectors);
        product_rows<Dot, MR, Simd::kVecs, false>(in.grad_out + static_cast<int64_t>(g) * vw, vw, 1, s.values + first,
                                                  kTile, s.dp + first, kTile, vw, vectors);
        if (seen.masked) mask_scores<MR>(s.scores, seen, plan, c * kTile, row, -kInf);
        // Natural logarithms up to the difference: one rounding less than an lse turned into powers of two.
        const auto weight = [&](int i, int n) {
          const V difference = Simd::fma(Simd::load(s.scores + i * kTile + n), scale, Simd::set1(-in.lse[g + i]));
          return exp2<Dot::kExpDegree>(Simd::mul(difference, Simd::set1(ScaledQuery::kLog2E)));
        };
        const auto grad_score = [&](int i, int n, V w) {
          return Simd::mul(w, Simd::sub(Simd::load(s.dp + i * kTile + n), Simd::set1(in.delta[g + i])));
        };
        const auto panel = [&](uint32_t* pairs, int i, int n) {
          return pairs + (static_cast<int64_t>(n / kUnit) * kTilePairs + (g + i) / kPair) * kUnit + n % kUnit;
        };
        for (int i = 0; i < MR; i += kPair) {
          for (int n = first; n < seen.hi * kUnit; n += Simd::W) {
            if constexpr (kPair == 2) {
              const V w0 = weight(i, n), w1 = weight(i + 1, n);
              const V d0 = grad_score(i, n, w0), d1 = grad_score(i + 1, n, w1);
              Dot::store_pairs(panel(s.p_pairs, i, n), w0, w1);
              Dot::store_pairs(panel(s.ds_pairs, i, n), d0, d1);
              Dot::store_row(s.ds + (g + i) * kTilePairs + n / 2, d0);
              Dot::store_row(s.ds + (g + i + 1) * kTilePairs + n / 2, d1);
            } else {
              const V w = weight(i, n), d = grad_score(i, n, w);
              Simd::store(reinterpret_cast<float*>(panel(s.p_pairs, i, n)), w);
              Simd::store(reinterpret_cast<float*>(panel(s.ds_pairs, i, n)), d);
              Simd::store(reinterpret_cast<float*>(s.ds + (g + i) * kTilePairs + n), d);
            }
          }
        }
      });
    }

    for (int u = 0; u < kUnitsPerTile; ++u) {
      const int from = seen_from[u] / kPair, depth = seen_to[u] / kPair - from;
      if (depth <= 0) continue;
      for (int n = 0; n < kUnit; n += Simd::kRowsT) {
        const int64_t at = (static_cast<int64_t>(u) * kTilePairs + from) * kUnit + n;
        const int64_t row = u * kUnit + n;
        product_rows<Dot, Simd::kRowsT, Simd::kVecsT, true>(s.p_pairs + at, 1, kUnit,
                                                            in.grad_out_pairs + static_cast<int64_t>(from) * vc, vc,
                                                            s.grad_v + row * vc, vc, depth, vc / Simd::W);
        product_rows<Dot, Simd::kRowsT, Simd::kVecsT, true>(s.ds_pairs + at, 1, kUnit,
                                                            in.q_pairs + static_cast<int64_t>(from) * kc, kc,
                                                            s.grad_k + row * kc, kc, depth, kc / Simd::W);
      }
    }
    for (int x = 0; x < group_count; ++x) {
      const Group& g = groups[x];
      with_rows(g.size, [&]<int MR>() {
        product_rows<Dot, MR, Simd::kVecs, true>(s.ds + g.row * kTilePairs + g.first / kPair, kTilePairs, 1,
                                                 s.key_pairs + static_cast<int64_t>(g.first / kPair) * kc, kc,
                                                 grad_q + static_cast<int64_t>(g.row) * kc, kc, g.units * kUnit / kPair,
                                                 kc / Simd::W);
      });
    }
  }
};

}  // namespace flashmask::FLASHMASK_ISA

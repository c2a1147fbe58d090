// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
#include "plan.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <vector>

namespace flashmask {
namespace {

constexpr int32_t kForever = std::numeric_limits<int32_t>::max();

int32_t clamp_row(int64_t x, int64_t seqlen_q) {
  return static_cast<int32_t>(std::min(std::max<int64_t>(x, 0), seqlen_q));
}

// Bounds as given -> [4][cols], spec of the lowered form: clamped, empties canonical, causal triangle as UT = [0, j -
// shift).
void lower(const MaskSource& mask, int64_t b, int64_t h, const PlanLayout& at, int32_t* bounds) {
  int32_t* lts = bounds + kLts * at.cols;
  int32_t* lte = bounds + kLte * at.cols;
  int32_t* uts = bounds + kUts * at.cols;
  int32_t* ute = bounds + kUte * at.cols;
  const int64_t sq = at.seqlen_q, sk = at.seqlen_k, shift = sk - sq;
  const int32_t rows = static_cast<int32_t>(sq);
  const int32_t* src = mask.data ? mask.data + b * mask.stride_b + h * mask.stride_h : nullptr;
  const int64_t ss = mask.stride_s, sc = mask.stride_c;

  for (int64_t j = 0; j < sk; ++j) {
    const int32_t* x = src ? src + j * ss : nullptr;
    lts[j] = x ? x[0] : rows;
    lte[j] = x && ((mask.causal && mask.columns == 2) || mask.columns == 4) ? x[sc] : rows;
    uts[j] = mask.columns == 4 ? x[2 * sc] : 0;
    ute[j] = mask.columns == 4 ? x[3 * sc] : (mask.columns == 2 && !mask.causal ? x[sc] : 0);
  }
  if (mask.causal) {
    for (int64_t j = 0; j < sk; ++j) ute[j] = clamp_row(j - shift, sq);
  }
  for (int64_t j = 0; j < sk; ++j) {
    int32_t s = std::min(std::max(lts[j], 0), rows), e = std::min(std::max(lte[j], 0), rows);
    lts[j] = s < e ? s : rows;
    lte[j] = s < e ? e : rows;
    s = std::min(std::max(uts[j], 0), rows), e = std::min(std::max(ute[j], 0), rows);
    uts[j] = s < e ? s : 0;
    ute[j] = s < e ? e : 0;
  }
  for (int64_t j = sk; j < at.cols; ++j) {
    lts[j] = uts[j] = 0;
    lte[j] = ute[j] = kForever;
  }
}

void min_max(const int32_t* src_min, const int32_t* src_max, int64_t n, int64_t run, int32_t* out_min,
             int32_t* out_max) {
  for (int64_t i = 0; i < n; ++i) {
    const int32_t* lo = src_min + i * run;
    const int32_t* hi = src_max + i * run;
    int32_t a = lo[0], z = hi[0];
    for (int64_t k = 1; k < run; ++k) {
      a = std::min(a, lo[k]);
      z = std::max(z, hi[k]);
    }
    out_min[i] = a;
    out_max[i] = z;
  }
}

}  // namespace

void build_plan(const MaskSource& mask, const BlockMask& block_mask, int64_t plan_batch, int64_t plan_heads, int64_t b,
                int64_t h, int64_t seqlen_q, int64_t seqlen_k, int32_t* plan) {
  const PlanLayout at(seqlen_q, seqlen_k);
  std::fill(plan, plan + kPlanHeader, 0);
  plan[0] = kPlanMagic;
  plan[1] = static_cast<int32_t>(seqlen_q);
  plan[2] = static_cast<int32_t>(seqlen_k);

  int32_t* bounds = plan + at.bounds;
  lower(mask, mask.batch == 1 ? 0 : b, h / (plan_heads / mask.heads), at, bounds);

  int32_t* tiles = plan + at.tile_stats;
  int32_t* units = plan + at.unit_stats;
  for (int x = 0; x < 4; ++x) {
    int32_t* unit_min = units + 2 * x * at.units;
    int32_t* unit_max = unit_min + at.units;
    min_max(bounds + x * at.cols, bounds + x * at.cols, at.units, kUnit, unit_min, unit_max);
    min_max(unit_min, unit_max, at.col_tiles, kUnitsPerTile, tiles + 2 * x * at.col_tiles,
            tiles + (2 * x + 1) * at.col_tiles);
  }

  // Work of a tile, in eighths of a full one; a partial tile skips some of its rows and pays for masking the others.
  constexpr int32_t kWork[3] = {0, 6, 8};
  std::vector<int32_t> row_cost(at.row_tiles);
  int32_t* col_cost = plan + at.col_cost;
  std::fill(col_cost, col_cost + at.col_tiles, 0);
  const Stats stats{tiles, at.col_tiles};
  const int32_t* keep = block_mask.data ? block_mask.data + (plan_batch == 1 ? 0 : b) * block_mask.stride_b +
                                              (h / (plan_heads / block_mask.heads)) * block_mask.stride_h
                                        : nullptr;
  for (int64_t r = 0; r < at.row_tiles; ++r) {
    const int32_t r0 = static_cast<int32_t>(r * kTile);
    const int32_t r1 = static_cast<int32_t>(std::min<int64_t>(r0 + kTile, seqlen_q));
    int32_t sum = 0;
    if (keep) {
      for (int64_t c = 0; c < at.col_tiles; ++c) {
        const bool kept = keep[r * block_mask.stride_r + c * block_mask.stride_c] != 0;
        const int32_t work = kept ? kWork[classify(stats, c, r0, r1)] : 0;
        sum += work;
        col_cost[c] += work;
      }
    } else {
      const int32_t *ls0 = tiles, *ls1 = ls0 + at.col_tiles, *le0 = ls1 + at.col_tiles, *le1 = le0 + at.col_tiles,
                    *us0 = le1 + at.col_tiles, *us1 = us0 + at.col_tiles, *ue0 = us1 + at.col_tiles,
                    *ue1 = ue0 + at.col_tiles;
      // `classify`, written with bit operations so that it becomes vector code: the one loop of quadratic length.
      for (int64_t c = 0; c < at.col_tiles; ++c) {
        const int32_t skip = ((r0 >= ls1[c]) & (r1 <= le0[c])) | ((r0 >= us1[c]) & (r1 <= ue0[c]));
        const int32_t part = ((r0 < le1[c]) & (r1 > ls0[c])) | ((r0 < ue1[c]) & (r1 > us0[c]));
        const int32_t work = (skip - 1) & (8 - 2 * part);
        sum += work;
        col_cost[c] += work;
      }
    }
    row_cost[r] = sum;
  }
  int32_t* order = plan + at.row_order;
  std::iota(order, order + at.row_tiles, 0);
  std::stable_sort(order, order + at.row_tiles, [&](int32_t a, int32_t b) { return row_cost[a] > row_cost[b]; });
}

}  // namespace flashmask

// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
//
// The plan: everything a kernel wants to know about one mask head, as one int32 array of O(S) size.
//
//   header | lowered bounds [4][cols] | tile min/max [8][col tiles] | unit min/max [8][units]
//          | row tiles by descending cost | cost of the column tiles
//
// `cols` is seqlen_k rounded up to a whole tile. Columns past seqlen_k are stored as hidden by both intervals, so
// that they never spoil a skip and always force masking. flashmask/mask/lowering.py and tiles.py are the readable
// specification of what is computed here.
#pragma once

#include <cstdint>

#include "types.h"

namespace flashmask {

constexpr int kPlanHeader = 16;
constexpr int32_t kPlanMagic = 0x464d5031;  // "FMP1"

enum Bound { kLts = 0, kLte = 1, kUts = 2, kUte = 3 };

inline namespace FLASHMASK_ISA {

struct PlanLayout {
  int64_t seqlen_q, seqlen_k, row_tiles, col_tiles, cols, units;
  int64_t bounds, tile_stats, unit_stats, row_order, col_cost, length;

  PlanLayout(int64_t sq, int64_t sk)
      : seqlen_q(sq),
        seqlen_k(sk),
        row_tiles(ceil_div(sq, kTile)),
        col_tiles(ceil_div(sk, kTile)),
        cols(col_tiles * kTile),
        units(cols / kUnit) {
    bounds = kPlanHeader;
    tile_stats = bounds + 4 * cols;
    unit_stats = tile_stats + 8 * col_tiles;
    row_order = unit_stats + 8 * units;
    col_cost = row_order + row_tiles;
    length = col_cost + col_tiles;
  }
};

// Minima and maxima of the four bounds over a run of columns: [2 * bound] is the minimum, [2 * bound + 1] the maximum.
struct Stats {
  const int32_t* base;
  int64_t stride;
  int32_t min(Bound b, int64_t i) const { return base[(2 * b) * stride + i]; }
  int32_t max(Bound b, int64_t i) const { return base[(2 * b + 1) * stride + i]; }
};

// One mask head of a plan.
struct PlanView {
  const int32_t* base;
  PlanLayout layout;
  const int32_t* bound(Bound b) const { return base + layout.bounds + b * layout.cols; }
  Stats tiles() const { return {base + layout.tile_stats, layout.col_tiles}; }
  Stats units() const { return {base + layout.unit_stats, layout.units}; }
  const int32_t* row_order() const { return base + layout.row_order; }
  const int32_t* col_cost() const { return base + layout.col_cost; }
};

enum TileClass : uint8_t { kSkip = 0, kPartial = 1, kFull = 2 };

// Rows [r0, r1) against columns summarized by entry i. Sound, not complete: never wrong about skip and full.
inline TileClass classify(const Stats& s, int64_t i, int32_t r0, int32_t r1) {
  const bool skip = (r0 >= s.max(kLts, i) && r1 <= s.min(kLte, i)) || (r0 >= s.max(kUts, i) && r1 <= s.min(kUte, i));
  const bool touched = (r0 < s.max(kLte, i) && r1 > s.min(kLts, i)) || (r0 < s.max(kUte, i) && r1 > s.min(kUts, i));
  return skip ? kSkip : (touched ? kPartial : kFull);
}

}  // namespace FLASHMASK_ISA

// The bounds of a mask as the user gave them.
struct MaskSource {
  const int32_t* data = nullptr;  // nullptr: no bounds
  int64_t stride_b = 0, stride_h = 0, stride_s = 0, stride_c = 0;
  int64_t batch = 1, heads = 1;
  int columns = 0;  // 0 (no bounds), 1, 2 or 4
  bool causal = false;
};

// Writes the plan of mask head (b, h) of (plan_batch, plan_heads).
void build_plan(const MaskSource& mask, const BlockMask& block_mask, int64_t plan_batch, int64_t plan_heads, int64_t b,
                int64_t h, int64_t seqlen_q, int64_t seqlen_k, int32_t* plan);

}  // namespace flashmask

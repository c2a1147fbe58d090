// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
#pragma once

#include <cstdint>

namespace flashmask {

constexpr int32_t kNoSlot = -1;

// A run of column tiles of one kv head under some of its query heads, and the memory that belongs to it.
struct BackwardTask {
  int64_t batch, kv_head;
  int64_t first_head, last_head;  // query heads [first, last)
  int64_t first_tile, last_tile;  // column tiles [first, last)
  uint32_t* rows;                 // packed row tiles: [heads][row tiles]
  float* grad_q;                  // shares of dq: [slots][kTile][columns]
  const int32_t* slots;           // [heads][row tiles], which share is this task's; kNoSlot: it does not touch the tile
  float* grad_kv;                 // its share of dk and dv: [column tiles of all runs][kTile][columns of k, then of v];
                                  // nullptr: the task has all query heads, and writes the results itself
};

}  // namespace flashmask

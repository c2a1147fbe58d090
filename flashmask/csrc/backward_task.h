// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
#pragma once

#include <cstdint>

namespace flashmask {

// A run of column tiles of one kv head, and the memory that belongs to it.
struct BackwardTask {
  int64_t batch, kv_head;
  int64_t first_tile, last_tile;  // column tiles [first, last)
  uint32_t* rows;                 // packed row tiles of the group: [group][row tiles]
  float* grad_q;                  // this run's share of dq: [group][row tiles][kTile][columns], written where touched
  uint8_t* touched;               // [group][row tiles]
};

}  // namespace flashmask

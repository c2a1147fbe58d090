// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
//
// What a level of instructions offers to the drivers: a row of functions for each dtype.
#pragma once

#include <cstdint>

#include "backward_task.h"
#include "plan.h"
#include "types.h"

namespace flashmask {

inline namespace FLASHMASK_ISA {

inline PlanView plan_of(const Problem& p, int64_t b, int64_t h) {
  const PlanLayout at(p.seqlen_q, p.seqlen_k);
  const int64_t head = h / (p.heads_q / p.plan_heads);
  return {p.plan + ((p.plan_batch == 1 ? 0 : b) * p.plan_heads + head) * at.length, at};
}

// Which column tiles the block mask keeps for row tile r of query head h.
class KeptTiles {
 public:
  KeptTiles(const Problem& p, int64_t b, int64_t h, int64_t r) : stride_(p.block_mask.stride_c) {
    const BlockMask& m = p.block_mask;
    if (m.data) row_ = m.data + b * m.stride_b + h / (p.heads_q / m.heads) * m.stride_h + r * m.stride_r;
  }
  bool operator()(int64_t c) const { return !row_ || row_[c * stride_] != 0; }

 private:
  const int32_t* row_ = nullptr;
  int64_t stride_;
};

}  // namespace FLASHMASK_ISA

struct Kernels {
  // Forward. Words are 32 bits.
  int64_t (*packed_words)(const Problem&);     // one column tile of one kv head
  int64_t (*forward_scratch)(const Problem&);  // one worker
  void (*forward_pack)(const ForwardProblem&, int64_t b, int64_t hk, int64_t c, uint32_t* dst);
  void (*forward)(const ForwardProblem&, int64_t b, int64_t h, int64_t r, const uint32_t* packed, uint32_t* scratch);
  // Backward.
  int64_t (*row_words)(const Problem&);          // one row tile of one query head
  int64_t (*query_columns)(const Problem&);      // floats in a row of a dq buffer
  int64_t (*key_value_columns)(const Problem&);  // floats in a row of a dk and dv buffer
  int64_t (*backward_scratch)(const Problem&);
  void (*backward_pack)(const BackwardProblem&, int64_t b, int64_t h, int64_t r, uint32_t* dst);
  void (*backward)(const BackwardProblem&, const BackwardTask&, uint32_t* scratch);
  void (*finish_key_value)(const BackwardProblem&, int64_t b, int64_t hk, int64_t c, float* const* parts,
                           int64_t count);
  void (*finish_query)(const BackwardProblem&, int64_t b, int64_t h, int64_t r, const float* const* parts,
                       int64_t count);
};

}  // namespace flashmask

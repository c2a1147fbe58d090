// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
//
// The problem as plain data: no framework header is seen from here down. Strides count elements.
//
// FLASHMASK_ISA names the level of instructions a translation unit is compiled for. Functions in shared headers live in
// an inline namespace of that name: a copy compiled for AVX-512 must never be the one that the linker keeps for all.
#pragma once

#include <cstdint>

#ifndef FLASHMASK_ISA
#define FLASHMASK_ISA common
#endif

namespace flashmask {

constexpr int kTile = 128;  // rows and columns of a tile; also the edge of a block_mask block
constexpr int kUnit = 16;   // columns of the finest mask statistics
constexpr int kUnitsPerTile = kTile / kUnit;
constexpr int kMaxHeadDim = 256;

enum class DType : int { kFloat32 = 0, kBFloat16 = 1, kFloat16 = 2 };

inline namespace FLASHMASK_ISA {
inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
inline int64_t round_up(int64_t a, int64_t b) { return ceil_div(a, b) * b; }
inline int64_t dtype_size(DType t) { return t == DType::kFloat32 ? 4 : 2; }
}  // namespace FLASHMASK_ISA

// A [batch, sequence, head, dim] tensor whose last dimension is contiguous.
struct View {
  const char* data = nullptr;
  int64_t stride_b = 0, stride_s = 0, stride_h = 0;
};

struct BlockMask {
  const int32_t* data = nullptr;  // [B, heads, row tiles, column tiles], 0 drops the tile; nullptr: keep all
  int64_t stride_b = 0, stride_h = 0, stride_r = 0, stride_c = 0;
  int64_t heads = 1;
};

struct Problem {
  int64_t batch = 0, seqlen_q = 0, seqlen_k = 0, heads_q = 0, heads_k = 0;
  int dim = 0, dim_v = 0;
  DType dtype = DType::kFloat32;
  float scale = 1.0f;
  View q, k, v;
  const int32_t* plan = nullptr;  // [plan_batch, plan_heads, PlanLayout::length]
  int64_t plan_batch = 1, plan_heads = 1;
  BlockMask block_mask;
};

inline namespace FLASHMASK_ISA {
inline int64_t group_of(const Problem& p) { return p.heads_q / p.heads_k; }
inline int64_t row_tiles_of(const Problem& p) { return ceil_div(p.seqlen_q, kTile); }
inline int64_t col_tiles_of(const Problem& p) { return ceil_div(p.seqlen_k, kTile); }
}  // namespace FLASHMASK_ISA

struct ForwardProblem : Problem {
  char* out = nullptr;   // [B, Sq, Hq, Dv] contiguous, dtype of the problem
  float* lse = nullptr;  // [B, Hq, Sq] contiguous
};

struct BackwardProblem : Problem {
  View out, grad_out;
  const float* lse = nullptr;                                    // [B, Hq, Sq] contiguous
  const float* grad_lse = nullptr;                               // the same, or nullptr for zeros
  char *grad_q = nullptr, *grad_k = nullptr, *grad_v = nullptr;  // contiguous, dtype of the problem
};

}  // namespace flashmask

// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
//
// From a whole problem to tasks: packs, order, hand-out, scratch memory. Knows nothing of torch or of instructions.
#pragma once

#include <cstdint>
#include <functional>

#include "levels.h"

namespace flashmask {

// Runs `worker(i)` for i in [0, count) at the same time, or as many at a time as there are threads.
struct Workers {
  int count;
  std::function<void(const std::function<void(int)>&)> run;
};

void forward(const ForwardProblem& p, const Kernels& kernels, const Workers& workers);
void backward(const BackwardProblem& p, const Kernels& kernels, const Workers& workers);

// How the backward pass is cut into tasks: a function of shapes only, because it decides the order of sums.
struct BackwardCut {
  int64_t heads;   // query heads of a task
  int64_t splits;  // tasks that share a kv head
  int64_t tiles;   // column tiles of a task
  int64_t runs;    // tasks that share a row
};
BackwardCut cut_backward(const Problem& p, int64_t query_columns);

}  // namespace flashmask

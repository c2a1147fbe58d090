// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
#pragma once

#include "backward.h"
#include "forward.h"

namespace flashmask::FLASHMASK_ISA {

template <class Dot>
inline const Kernels* kernels_for() {
  using F = Forward<Dot>;
  using B = Backward<Dot>;
  static constexpr Kernels kernels = {
      &F::packed_words,      &F::scratch_words, &F::pack, &F::run, &B::row_words,        &B::query_columns,
      &B::key_value_columns, &B::scratch_words, &B::pack, &B::run, &B::finish_key_value, &B::finish_query};
  return &kernels;
}

}  // namespace flashmask::FLASHMASK_ISA

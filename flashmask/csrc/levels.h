// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
//
// The levels of instructions, one translation unit each, and the choice between them at run time.
#pragma once

#include "kernel.h"

namespace flashmask {

const Kernels* kernels_portable(DType, int dim);
const Kernels* kernels_avx2(DType, int dim);
const Kernels* kernels_avx512(DType, int dim);
const Kernels* kernels_avx512_bf16(DType, int dim);

struct Level {
  const char* name;
  bool (*supported)();
  const Kernels* (*kernels)(DType, int dim);
};

constexpr int kMaxLevels = 4;
// Levels compiled into this library, slowest first.
const Level* levels(int* count);
// The level in use: the last supported one, until `set_level` names another. False: no such level on this machine.
const Level& current_level();
bool set_level(const char* name);

}  // namespace flashmask

// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
//
// The levels of instructions, one translation unit each, and the choice between them at run time.
#pragma once

#include "kernel.h"

namespace flashmask {

const Kernels* kernels_portable(DType);
const Kernels* kernels_avx2(DType);
const Kernels* kernels_avx512(DType);
const Kernels* kernels_avx512_bf16(DType);

struct Level {
  const char* name;
  bool (*supported)();
  const Kernels* (*kernels)(DType);
};

// Levels compiled into this library, slowest first.
const Level* levels(int* count);
// The level in use: the last supported one, until `set_level` names another. False: no such level on this machine.
const Level& current_level();
bool set_level(const char* name);

}  // namespace flashmask

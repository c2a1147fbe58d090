// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
//
// Registers the CPU kernels with torch. Schemas, fakes and gradients are registered in Python (ops.py).

#include <Python.h>

#include "stable_abi.h"

STABLE_TORCH_LIBRARY_IMPL(flashmask, CPU, m) {}

// Importing the module runs the registrations above; there is nothing else in it.
PyMODINIT_FUNC PyInit__C() {
  static PyModuleDef module = {PyModuleDef_HEAD_INIT, "_C", nullptr, -1, nullptr, nullptr, nullptr, nullptr, nullptr};
  return PyModule_Create(&module);
}

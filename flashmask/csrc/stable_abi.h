// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
//
// Short names for the stable types of torch. This is the only file which includes a torch header.
#pragma once

#include <torch/csrc/stable/version.h>

// torch accepts a target newer than itself without a word, and the module would then ask for symbols which no
// supported torch has.
#if TORCH_FEATURE_VERSION > TORCH_ABI_VERSION
#error "TORCH_TARGET_VERSION is newer than the installed torch: lower the target or install a newer torch"
#endif

#include <torch/csrc/stable/device.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>
#include <torch/headeronly/util/Exception.h>

namespace flashmask {

using torch::headeronly::ScalarType;
using torch::stable::Device;
using torch::stable::DeviceType;
using torch::stable::get_num_threads;
using torch::stable::parallel_for;
using torch::stable::Tensor;

}  // namespace flashmask

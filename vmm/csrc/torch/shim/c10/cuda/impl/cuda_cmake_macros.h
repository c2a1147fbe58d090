// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
//
// Torch built without CUDA carries the headers of its CUDA part except this one, which its build makes.
// With it cuda_subclass.cpp compiles on a machine without a GPU. Never used where torch has its own.

#pragma once

#define C10_CUDA_BUILD_SHARED_LIBS

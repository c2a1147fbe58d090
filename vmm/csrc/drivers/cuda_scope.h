// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
//
// The state of a thread in which the driver may be called: the context of the device is current, and
// while some other stream is being captured the call does not break the capture.

#pragma once

#include "drivers/cuda_api.h"

namespace vmm::cuda {

class Scope {
 public:
  Scope(const Api& api, Context context) : api_(api) {
    Context current = nullptr;
    result_ = api_.ctx_get_current(&current);
    if (result_ == kSuccess && current != context) {
      result_ = api_.ctx_push_current(context);
      pushed_ = result_ == kSuccess;
    }
    if (result_ == kSuccess) {
      result_ = api_.exchange_capture_mode(&mode_);
      exchanged_ = result_ == kSuccess;
    }
  }
  ~Scope() {
    Context popped = nullptr;
    if (exchanged_) api_.exchange_capture_mode(&mode_);
    if (pushed_) api_.ctx_pop_current(&popped);
  }
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;

  Result result() const { return result_; }

 private:
  const Api& api_;
  Result result_;
  int mode_ = kCaptureModeRelaxed;  // and then what it was before
  bool pushed_ = false, exchanged_ = false;
};

}  // namespace vmm::cuda

// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
//
// The lock of a device: it spins a little, then sleeps. What it protects takes tens of nanoseconds.

#pragma once

#include <pthread.h>

namespace vmm {

class Lock {
 public:
  Lock() {
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_settype(&attributes, PTHREAD_MUTEX_ADAPTIVE_NP);
    pthread_mutex_init(&mutex_, &attributes);
    pthread_mutexattr_destroy(&attributes);
  }
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;

  void lock() { pthread_mutex_lock(&mutex_); }
  void unlock() { pthread_mutex_unlock(&mutex_); }

 private:
  pthread_mutex_t mutex_;
};

}  // namespace vmm

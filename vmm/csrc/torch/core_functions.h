// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
//
// The functions of the core that the subclass calls, found by name in a library that is loaded already.

#pragma once

#include <c10/util/Exception.h>
#include <dlfcn.h>

#include <string>

#include "plugin/torch_plugin.h"

namespace vmm {

class CoreLibrary {
 public:
  explicit CoreLibrary(const char* path) : handle_(dlopen(path, RTLD_NOW | RTLD_NOLOAD)) {
    TORCH_CHECK(handle_ != nullptr, "core_library: ", path, " is not loaded");
  }

  template <class F>
  F* find(const char* name) const {
    void* found = dlsym(handle_, name);
    TORCH_CHECK(found != nullptr, "core_library: it has no function ", name);
    return reinterpret_cast<F*>(found);
  }

 private:
  void* handle_;  // never closed: the functions stay in use
};

struct CoreFunctions {
  explicit CoreFunctions(const CoreLibrary& library)
      : last_error(library.find<decltype(vmm_last_error)>("vmm_last_error")),
        block_of(library.find<decltype(vmm_block_of)>("vmm_block_of")),
        stat_count(library.find<decltype(vmm_stat_count)>("vmm_stat_count")),
        stat_name(library.find<decltype(vmm_stat_name)>("vmm_stat_name")),
        stats(library.find<decltype(vmm_stats)>("vmm_stats")),
        reset_peak(library.find<decltype(vmm_reset_peak)>("vmm_reset_peak")),
        blocks(library.find<decltype(vmm_blocks)>("vmm_blocks")),
        record_start(library.find<decltype(vmm_record_start)>("vmm_record_start")),
        record_stop(library.find<decltype(vmm_record_stop)>("vmm_record_stop")),
        record_read(library.find<decltype(vmm_record_read)>("vmm_record_read")),
        streams(library.find<decltype(vmm_streams)>("vmm_streams")),
        torch_malloc(library.find<decltype(vmm_torch_malloc)>("vmm_torch_malloc")),
        torch_free(library.find<decltype(vmm_torch_free)>("vmm_torch_free")),
        torch_init(library.find<decltype(vmm_torch_init)>("vmm_torch_init")),
        torch_reset(library.find<decltype(vmm_torch_reset)>("vmm_torch_reset")),
        torch_memory_fraction(library.find<decltype(vmm_torch_memory_fraction)>("vmm_torch_memory_fraction")),
        torch_base_alloc(library.find<decltype(vmm_torch_base_alloc)>("vmm_torch_base_alloc")),
        torch_record_stream(library.find<decltype(vmm_torch_record_stream)>("vmm_torch_record_stream")),
        torch_begin(library.find<decltype(vmm_torch_begin_allocate_to_pool)>("vmm_torch_begin_allocate_to_pool")),
        torch_end(library.find<decltype(vmm_torch_end_allocate_to_pool)>("vmm_torch_end_allocate_to_pool")),
        torch_release(library.find<decltype(vmm_torch_release_pool)>("vmm_torch_release_pool")),
        torch_pool_number(library.find<decltype(vmm_torch_pool_number)>("vmm_torch_pool_number")),
        torch_pool_uses(library.find<decltype(vmm_torch_pool_uses)>("vmm_torch_pool_uses")),
        torch_hold_pool(library.find<decltype(vmm_torch_hold_pool)>("vmm_torch_hold_pool")) {}

  decltype(vmm_last_error)* last_error;
  decltype(vmm_block_of)* block_of;
  decltype(vmm_stat_count)* stat_count;
  decltype(vmm_stat_name)* stat_name;
  decltype(vmm_stats)* stats;
  decltype(vmm_reset_peak)* reset_peak;
  decltype(vmm_blocks)* blocks;
  decltype(vmm_record_start)* record_start;
  decltype(vmm_record_stop)* record_stop;
  decltype(vmm_record_read)* record_read;
  decltype(vmm_streams)* streams;
  decltype(vmm_torch_malloc)* torch_malloc;
  decltype(vmm_torch_free)* torch_free;
  decltype(vmm_torch_init)* torch_init;
  decltype(vmm_torch_reset)* torch_reset;
  decltype(vmm_torch_memory_fraction)* torch_memory_fraction;
  decltype(vmm_torch_base_alloc)* torch_base_alloc;
  decltype(vmm_torch_record_stream)* torch_record_stream;
  decltype(vmm_torch_begin_allocate_to_pool)* torch_begin;
  decltype(vmm_torch_end_allocate_to_pool)* torch_end;
  decltype(vmm_torch_release_pool)* torch_release;
  decltype(vmm_torch_pool_number)* torch_pool_number;
  decltype(vmm_torch_pool_uses)* torch_pool_uses;
  decltype(vmm_torch_hold_pool)* torch_hold_pool;
};

}  // namespace vmm

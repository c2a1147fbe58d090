// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
//
// See replay.h.

#include "core/replay.h"

#include <chrono>

#include "core/sentences.h"

namespace vmm {

vmm_status replay(Device* device, const vmm_replay_event* events, size_t count, size_t ids, bool stop_at_oom,
                  uint64_t* addresses, vmm_replay_result* result) {
  *result = {};
  std::vector<void*> live(ids, nullptr);
  auto start = std::chrono::steady_clock::now();
  vmm_status status = VMM_OK;
  uint64_t last_t = UINT64_MAX;
  for (size_t i = 0; i < count && status == VMM_OK; ++i) {
    const vmm_replay_event& event = events[i];
    if (addresses != nullptr) addresses[i] = 0;
    if (event.t_ns != last_t) device->clock_set(last_t = event.t_ns);
    bool names_id = event.op == 'a' || event.op == 'f' || event.op == 'r';
    if (names_id && event.id >= ids) {
      return fail(VMM_INVALID, "events: event " + std::to_string(i) + " names allocation " + std::to_string(event.id) +
                                   ", but ids is " + std::to_string(ids));
    }
    switch (event.op) {
      case 'a': {
        vmm_request request{};
        request.size = event.bytes;
        request.stream = event.stream;
        request.pool = event.pool;
        void* pointer = nullptr;
        vmm_status allocated = device->allocate(request, &pointer);
        if (allocated == VMM_OUT_OF_MEMORY) {
          device->count_oom(request);
          if (result->ooms++ == 0) result->first_oom = i;
          if (stop_at_oom) count = i;  // the loop ends here
          break;
        }
        status = allocated;
        live[event.id] = pointer;
        if (addresses != nullptr) addresses[i] = reinterpret_cast<uint64_t>(pointer);
        break;
      }
      case 'f':
        // What could not be allocated is not freed.
        if (live[event.id] != nullptr) status = device->deallocate(live[event.id]);
        live[event.id] = nullptr;
        break;
      case 'r':
        if (live[event.id] != nullptr) status = device->record_stream(live[event.id], event.stream);
        break;
      case 'k': status = device->clock_kernel(event.stream, event.bytes); break;
      case 's': status = device->sync_stream(event.stream); break;
      case 'm': status = device->mark_step(); break;
      default:
        return fail(VMM_INVALID,
                    "events: event " + std::to_string(i) + " has the unknown op " + std::to_string(event.op));
    }
    ++result->done;
  }
  auto elapsed = std::chrono::steady_clock::now() - start;
  result->elapsed_ns = static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(elapsed).count());
  return status;
}

}  // namespace vmm

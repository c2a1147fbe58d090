// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
//
// The C interface of the allocator. It is all that Python, the hooks into torch and other device
// backends see of the core, so that one shared library serves every version of torch and Python.
//
// Rules. Every function may be called from any thread. Functions that can fail return a status; the
// sentence about the last failure of the calling thread is vmm_last_error(). Sizes and addresses are
// bytes. A stream is an opaque 64-bit handle (cudaStream_t as a number, 0 is the default stream). After
// fork() the child's copy is dead: every call returns VMM_DEAD, and vmm_deallocate does nothing.

#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define VMM_API __attribute__((visibility("default")))
#define VMM_ABI_VERSION 1

typedef enum vmm_status {
  VMM_OK = 0,
  VMM_OUT_OF_MEMORY = 1,
  VMM_INVALID = 2,      // an argument breaks a rule; nothing was changed
  VMM_NOT_READY = 3,    // an event or a stream is not done yet
  VMM_DRIVER = 4,       // the driver refused; what had been done was undone
  VMM_DEVICE_LOST = 5,  // every later call of the driver fails as well
  VMM_UNSUPPORTED = 6,
  VMM_DEAD = 7,  // a child of fork(), or after vmm_destroy
} vmm_status;

typedef struct vmm_allocator vmm_allocator;

// ---- Life ---------------------------------------------------------------------------------------

// Opens an allocator. `config` is "key:value,key:value"; config.h lists the keys, an unknown key is an
// error. Nothing is reserved or created until the first allocation on a device.
VMM_API vmm_status vmm_create(const char* config, vmm_allocator** out);

// Gives everything back to the driver. Live pointers become invalid. No other call may be running.
VMM_API void vmm_destroy(vmm_allocator* allocator);

// The sentence about the last failure in this thread; "" if there was none. Valid until the next call.
VMM_API const char* vmm_last_error(void);

// ---- Allocation ---------------------------------------------------------------------------------

typedef struct vmm_request {
  uint64_t size;    // bytes; 0 gives a null pointer and no record
  uint64_t stream;  // the stream that will use the memory
  int32_t device;
  uint32_t pool;   // 0: the default pool
  uint32_t tag;    // an interned name (vmm_intern_tag), 0: the tag of the thread
  uint32_t stack;  // an interned stack, 0: none
} vmm_request;

VMM_API vmm_status vmm_allocate(vmm_allocator* allocator, const vmm_request* request, void** out);

// Frees a live pointer. Work queued on its streams may still use it; the core keeps it from anyone who
// would not wait. Returns VMM_INVALID for a pointer that is not live.
VMM_API vmm_status vmm_deallocate(vmm_allocator* allocator, int device, void* pointer);

// Says that work on `stream` uses the pointer beside the stream of the request.
VMM_API vmm_status vmm_record_stream(vmm_allocator* allocator, int device, void* pointer, uint64_t stream);

// The block that an address lies in. `requested` is what the caller asked for. May be null.
VMM_API vmm_status vmm_block_of(vmm_allocator* allocator, int device, const void* address, void** base, uint64_t* size,
                                uint64_t* requested);

// The tag which requests of the calling thread get unless they bring their own. Returns the old one.
VMM_API uint32_t vmm_set_thread_tag(uint32_t tag);

// Called without any lock before an allocation is recorded, while a recording with stacks runs. Returns
// the number of the interned stack, or 0.
typedef uint32_t (*vmm_stack_hook)(uint64_t size);
VMM_API void vmm_set_stack_hook(vmm_stack_hook hook);

// ---- Pools, pins, sleep -------------------------------------------------------------------------

// A private pool: arenas of its own. It takes no pages from others, and others take its idle ones only before a
// request fails; with `shared_pages` they move freely. `cap` bounds its physical bytes (0: no bound of its own).
VMM_API vmm_status vmm_pool_create(vmm_allocator* allocator, int device, const char* name, uint64_t cap,
                                   int shared_pages, uint32_t* pool);

// The pool is freed as soon as nothing in it is live; until then it stays usable.
VMM_API vmm_status vmm_pool_release(vmm_allocator* allocator, int device, uint32_t pool);

// Releases the physical pages of a pool; addresses stay reserved, live pointers stay valid as numbers.
// With `keep`, the content is copied to host memory and comes back at wake; without, it is zero or
// undefined then. While a pool sleeps, allocating from it returns VMM_INVALID.
VMM_API vmm_status vmm_pool_sleep(vmm_allocator* allocator, int device, uint32_t pool, int keep,
                                  uint64_t* released_bytes);
VMM_API vmm_status vmm_pool_wake(vmm_allocator* allocator, int device, uint32_t pool);

typedef enum vmm_pin_reason {
  VMM_PIN_IPC = 0,
  VMM_PIN_REGISTERED = 1,  // NCCL or RDMA registration
  VMM_PIN_GRAPH = 2,       // a captured graph names the addresses
  VMM_PIN_USER = 3,
  VMM_PIN_REASONS = 4,
} vmm_pin_reason;

// Pages under a pinned range never change their address, not even after it is freed. Pins count.
VMM_API vmm_status vmm_pin(vmm_allocator* allocator, int device, const void* pointer, uint64_t size,
                           vmm_pin_reason reason);
VMM_API vmm_status vmm_unpin(vmm_allocator* allocator, int device, const void* pointer, uint64_t size,
                             vmm_pin_reason reason);

// ---- Defragmentation and returning memory -------------------------------------------------------

// Gathers free pages into one run of at least `target` bytes (0: as large as it can), or gives them back
// to the driver with `release`. With `sync` the device is synchronized first, so that no fence is open.
VMM_API vmm_status vmm_compact(vmm_allocator* allocator, int device, uint64_t target, int release, int sync,
                               uint64_t* moved_bytes);

// Releases up to `bytes` of free physical memory (UINT64_MAX: all). Never waits for the device.
VMM_API vmm_status vmm_trim(vmm_allocator* allocator, int device, uint64_t bytes, uint64_t* released_bytes);

// The end of a training step: the adaptive soft limit follows the last steps, counters per step turn.
VMM_API vmm_status vmm_mark_step(vmm_allocator* allocator, int device);

// A hard limit on physical bytes (0: none of our own). Lowering it below what is held trims.
VMM_API vmm_status vmm_set_limit(vmm_allocator* allocator, int device, uint64_t bytes);

typedef enum vmm_fit { VMM_FITS = 0, VMM_FITS_AFTER_STEAL = 1, VMM_DOES_NOT_FIT = 2 } vmm_fit;

// Whether requests of these sizes, all live together, would fit. Changes nothing.
VMM_API vmm_status vmm_plan(vmm_allocator* allocator, int device, const uint64_t* sizes, size_t count, uint64_t stream,
                            vmm_fit* answer);

// Does the mapping that such requests would need, now.
VMM_API vmm_status vmm_prefetch(vmm_allocator* allocator, int device, const uint64_t* sizes, size_t count,
                                uint64_t stream);

// Called without the device lock when a request cannot be served. Nonzero: something was freed, try
// again. At most `oom_rounds` rounds per request.
typedef int (*vmm_oom_callback)(void* user, int device, uint64_t size);
VMM_API vmm_status vmm_on_oom(vmm_allocator* allocator, vmm_oom_callback callback, void* user);
VMM_API vmm_status vmm_remove_on_oom(vmm_allocator* allocator, vmm_oom_callback callback, void* user);

// ---- Seeing -------------------------------------------------------------------------------------

// Statistics are a table of names and a row of numbers in the same order.
VMM_API size_t vmm_stat_count(void);
VMM_API const char* vmm_stat_name(size_t index);
VMM_API vmm_status vmm_stats(vmm_allocator* allocator, int device, uint64_t* out, size_t count);
VMM_API vmm_status vmm_reset_peak(vmm_allocator* allocator, int device);

typedef enum vmm_block_state {
  VMM_BLOCK_ACTIVE = 0,
  VMM_BLOCK_PENDING = 1,        // freed, other streams may still use it
  VMM_BLOCK_FREE_MAPPED = 2,    // free, physical pages behind it
  VMM_BLOCK_FREE_UNMAPPED = 3,  // free address range
} vmm_block_state;

typedef struct vmm_block_info {
  uint64_t address, size, requested, stream;
  uint32_t arena, pool, tag, stack;
  int32_t state;    // vmm_block_state
  uint32_t asleep;  // 1: in a sleeping pool
  uint64_t fence;   // number of open fences
} vmm_block_info;

typedef struct vmm_slot_info {  // one virtual page
  uint64_t address;
  int64_t page;  // physical page, -1: none
  uint32_t arena;
  int32_t stale;  // 1: an old mapping that is waiting for its fence
  uint32_t pins[VMM_PIN_REASONS];
} vmm_slot_info;

typedef struct vmm_arena_info {
  uint64_t base, reserved, used;  // the address range, and how much of it has been handed out
  uint64_t page_size;
  uint32_t arena, pool;
  int32_t small, asleep;
  char pool_name[64];
} vmm_arena_info;

// Each fills at most `capacity` rows in address order and gives the full number in `count`.
VMM_API vmm_status vmm_blocks(vmm_allocator* allocator, int device, vmm_block_info* out, size_t capacity,
                              size_t* count);
VMM_API vmm_status vmm_slots(vmm_allocator* allocator, int device, vmm_slot_info* out, size_t capacity, size_t* count);
VMM_API vmm_status vmm_arenas(vmm_allocator* allocator, int device, vmm_arena_info* out, size_t capacity,
                              size_t* count);

// All invariants of the tables. VMM_INVALID and a sentence if one is broken.
VMM_API vmm_status vmm_check(vmm_allocator* allocator, int device);

typedef enum vmm_action {
  VMM_EVENT_ALLOC = 1,
  VMM_EVENT_FREE_REQUESTED = 2,
  VMM_EVENT_FREE_COMPLETED = 3,
  VMM_EVENT_MAP = 4,    // one page; aux: page number | vmm_map_cause << 56
  VMM_EVENT_UNMAP = 5,  // one page; aux: the same
  VMM_EVENT_OOM = 6,    // size: the request, aux: free bytes of the device
  VMM_EVENT_WAIT = 7,   // `stream` was made to wait for stream number `aux`
  VMM_EVENT_SYNC = 8,   // the device was synchronized
  VMM_EVENT_STEP = 9,
  VMM_EVENT_RECORD_STREAM = 10,
  VMM_EVENT_SLEEP = 11,
  VMM_EVENT_WAKE = 12,
  VMM_EVENT_NOTE = 13,  // tag: the text, from vmm_note
} vmm_action;

typedef enum vmm_map_cause {
  VMM_CAUSE_CREATE = 0,  // new from the driver, or given back to it
  VMM_CAUSE_POOL = 1,    // to or from the free pages that the allocator keeps
  VMM_CAUSE_MOVE = 2,    // a free page with a closed fence, from another address
  VMM_CAUSE_ALIAS = 3,   // the same with an open fence: the old mapping goes later
  VMM_CAUSE_SLEEP = 4,
} vmm_map_cause;

typedef struct vmm_event {  // 48 bytes
  uint64_t t_ns;            // CLOCK_MONOTONIC, or the logical clock in a replay
  uint64_t address, size;
  uint64_t aux;     // alloc: requested bytes; else see vmm_action
  uint16_t stream;  // index into vmm_streams
  uint16_t pool;
  uint8_t device, action;
  uint16_t thread;  // small number of the thread that called
  uint32_t tag, stack;
} vmm_event;

// A ring of the last `capacity` events. Allocations below `min_size` and their frees are left out.
VMM_API vmm_status vmm_record_start(vmm_allocator* allocator, uint64_t capacity, uint64_t min_size, int with_stacks);
VMM_API vmm_status vmm_record_stop(vmm_allocator* allocator);

// Takes the oldest events out of the ring. `lost` counts what was overwritten since the start.
VMM_API vmm_status vmm_record_read(vmm_allocator* allocator, vmm_event* out, size_t capacity, size_t* count,
                                   uint64_t* lost);
VMM_API vmm_status vmm_note(vmm_allocator* allocator, int device, uint32_t tag);

// Names. Interning the same text again gives the same number; 0 is the empty text.
VMM_API uint32_t vmm_intern_tag(const char* text);
VMM_API const char* vmm_tag_text(uint32_t tag);  // null for an unknown number

// The handle behind a stream number of recorded events, those of all devices; *count is how many there are.
VMM_API vmm_status vmm_streams(vmm_allocator* allocator, uint64_t* out, size_t capacity, size_t* count);

// ---- Replay -------------------------------------------------------------------------------------

typedef struct vmm_replay_event {
  uint64_t t_ns;
  uint64_t bytes;   // alloc: size; kernel: duration in ns
  uint32_t id;      // of the allocation, below `ids`
  uint32_t stream;  // the handle
  uint32_t pool;    // as vmm_pool_create numbered it
  uint8_t op;       // 'a' alloc, 'f' free, 'r' record_stream, 'k' kernel, 's' sync stream, 'm' step
  uint8_t reserved[3];
} vmm_replay_event;

typedef struct vmm_replay_result {
  uint64_t done;  // events, all of them unless `stop_at_oom`
  uint64_t ooms, first_oom;
  uint64_t elapsed_ns;  // wall time of the loop
} vmm_replay_result;

// Runs events through the allocator of device 0 on the logical clock of the driver. `addresses` may be
// null; else it gets the address of each allocation, by event (0 where there is none).
VMM_API vmm_status vmm_replay(vmm_allocator* allocator, const vmm_replay_event* events, size_t count, size_t ids,
                              int stop_at_oom, uint64_t* addresses, vmm_replay_result* result);

// The logical clock and queues of the null and host driver; VMM_UNSUPPORTED on cuda. A kernel keeps its
// stream busy for `duration_ns` after the work queued before it.
VMM_API vmm_status vmm_clock_set(vmm_allocator* allocator, int device, uint64_t t_ns);
VMM_API vmm_status vmm_clock_kernel(vmm_allocator* allocator, int device, uint64_t stream, uint64_t duration_ns);

// ---- The table for other libraries --------------------------------------------------------------

// A device backend or a hook needs no link to this library: it is handed this table.
typedef struct vmm_table {
  uint32_t version;  // VMM_ABI_VERSION
  uint32_t size;     // sizeof(vmm_table): later versions only append
  vmm_status (*create)(const char* config, vmm_allocator** out);
  void (*destroy)(vmm_allocator* allocator);
  const char* (*last_error)(void);
  vmm_status (*allocate)(vmm_allocator* allocator, const vmm_request* request, void** out);
  vmm_status (*deallocate)(vmm_allocator* allocator, int device, void* pointer);
  vmm_status (*record_stream)(vmm_allocator* allocator, int device, void* pointer, uint64_t stream);
  vmm_status (*block_of)(vmm_allocator* allocator, int device, const void* address, void** base, uint64_t* size,
                         uint64_t* requested);
  vmm_status (*trim)(vmm_allocator* allocator, int device, uint64_t bytes, uint64_t* released_bytes);
  vmm_status (*mark_step)(vmm_allocator* allocator, int device);
  size_t (*stat_count)(void);
  const char* (*stat_name)(size_t index);
  vmm_status (*stats)(vmm_allocator* allocator, int device, uint64_t* out, size_t count);
} vmm_table;

// Null if this library does not speak `version`.
VMM_API const vmm_table* vmm_get_table(uint32_t version);

#ifdef __cplusplus
}
#endif

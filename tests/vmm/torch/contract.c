// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
//
// What a device backend does with the core: it is handed a table, in plain C.

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "vmm.h"

#define CHECK(what)                                                         \
  do {                                                                      \
    if (!(what)) {                                                          \
      fprintf(stderr, "line %d: %s (%s)\n", __LINE__, #what, last_error()); \
      return 1;                                                             \
    }                                                                       \
  } while (0)

static const vmm_table* table;

static const char* last_error(void) { return table == NULL ? "no table" : table->last_error(); }

static uint64_t stat(vmm_allocator* core, int device, const char* name) {
  uint64_t row[512];
  const size_t count = table->stat_count();
  if (count > 512 || table->stats(core, device, row, count) != VMM_OK) return UINT64_MAX;
  for (size_t i = 0; i < count; ++i) {
    if (strcmp(table->stat_name(i), name) == 0) return row[i];
  }
  return UINT64_MAX;
}

int main(int count, char** words) {
  void* library = dlopen(count > 1 ? words[1] : "", RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) {
    fprintf(stderr, "%s\n", dlerror());
    return 1;
  }
  // An object pointer becomes a function pointer through its bytes: C has no cast for it.
  const vmm_table* (*get_table)(uint32_t);
  void* symbol = dlsym(library, "vmm_get_table");
  CHECK(symbol != NULL);
  memcpy(&get_table, &symbol, sizeof symbol);

  CHECK(get_table(VMM_ABI_VERSION + 1) == NULL);
  table = get_table(VMM_ABI_VERSION);
  CHECK(table != NULL && table->version == VMM_ABI_VERSION && table->size >= sizeof(vmm_table));

  vmm_allocator* core = NULL;
  CHECK(table->create("driver:host,no_such_key:1", &core) == VMM_INVALID && core == NULL);
  CHECK(strstr(table->last_error(), "no_such_key") != NULL);
  CHECK(table->create("driver:host,devices:2,device_bytes:64MiB,check:2", &core) == VMM_OK);

  for (int device = 0; device < 2; ++device) {
    const vmm_request request = {.size = 3u << 20, .stream = 7, .device = device};
    void* memory = NULL;
    CHECK(table->allocate(core, &request, &memory) == VMM_OK && memory != NULL);
    memset(memory, 0x5a, request.size);
    CHECK(((unsigned char*)memory)[request.size - 1] == 0x5a);
    CHECK(stat(core, device, "requested_bytes.all.current") == request.size);

    void* base = NULL;
    uint64_t size = 0, requested = 0;
    CHECK(table->block_of(core, device, (char*)memory + 12345, &base, &size, &requested) == VMM_OK);
    CHECK(base == memory && size >= request.size && requested == request.size);

    CHECK(table->record_stream(core, device, memory, 9) == VMM_OK);
    CHECK(table->deallocate(core, device, memory) == VMM_OK);
    CHECK(table->deallocate(core, device, memory) == VMM_INVALID);
    CHECK(table->mark_step(core, device) == VMM_OK);
    uint64_t released = 0;
    CHECK(table->trim(core, device, UINT64_MAX, &released) == VMM_OK);
    CHECK(released > 0 && stat(core, device, "reserved_bytes.all.current") == 0);
  }

  void* memory = &core;
  const vmm_request nothing = {.size = 0};
  CHECK(table->allocate(core, &nothing, &memory) == VMM_OK && memory == NULL);
  const vmm_request too_much = {.size = 65u << 20};
  CHECK(table->allocate(core, &too_much, &memory) == VMM_OUT_OF_MEMORY && memory == NULL);
  const vmm_request nowhere = {.size = 1, .device = 2};
  CHECK(table->allocate(core, &nowhere, &memory) == VMM_INVALID);
  table->destroy(core);
  puts("ok");
  return 0;
}

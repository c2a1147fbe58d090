// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
//
// Calls the functions of torch_plugin.h as torch does, over the host driver.

#include <dlfcn.h>

#include <cstdio>
#include <cstring>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "plugin/torch_plugin.h"

namespace {

void* library = nullptr;

template <class F>
F* symbol(const char* name) {
  void* found = dlsym(library, name);
  if (found == nullptr) throw std::runtime_error(std::string("there is no ") + name);
  return reinterpret_cast<F*>(found);
}
#define CALL(name) symbol<decltype(name)>(#name)

void check(bool ok, const char* what, int line) {
  if (!ok) throw std::runtime_error("line " + std::to_string(line) + ": " + what);
}
#define CHECK(what) check((what), #what, __LINE__)

vmm_allocator* core = nullptr;

uint64_t stat(int device, const char* name) {
  std::vector<uint64_t> row(CALL(vmm_stat_count)());
  CHECK(CALL(vmm_stats)(core, device, row.data(), row.size()) == VMM_OK);
  for (size_t i = 0; i < row.size(); ++i) {
    if (std::strcmp(CALL(vmm_stat_name)(i), name) == 0) return row[i];
  }
  throw std::runtime_error(std::string("there is no statistic ") + name);
}

uint32_t pool_of(int device, const void* pointer) {
  std::vector<vmm_block_info> rows(4096);
  size_t count = 0;
  CHECK(CALL(vmm_blocks)(core, device, rows.data(), rows.size(), &count) == VMM_OK);
  for (size_t i = 0; i < count; ++i) {
    if (rows[i].address == reinterpret_cast<uint64_t>(pointer)) return rows[i].pool;
  }
  throw std::runtime_error("no block at the address");
}

template <class F>
std::string thrown(F body) {
  try {
    body();
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "";
}

const auto kStream = reinterpret_cast<cudaStream_t>(0x40);
const auto kSide = reinterpret_cast<cudaStream_t>(0x80);

void serves_and_throws() {
  auto* malloc = CALL(vmm_torch_malloc);
  auto* free = CALL(vmm_torch_free);
  void* a = malloc(5 << 20, 1, kStream);
  std::memset(a, 1, 5 << 20);
  CHECK(stat(1, "requested_bytes.all.current") == 5 << 20);
  CHECK(stat(0, "requested_bytes.all.current") == 0);
  const std::string why = thrown([&] { malloc(1ll << 40, 1, kStream); });
  CHECK(why.find("out of memory") != std::string::npos);
  CHECK(malloc(0, 0, kStream) == nullptr);

  size_t size = 0;
  CHECK(CALL(vmm_torch_base_alloc)(static_cast<char*>(a) + 4096, &size) == a);
  CHECK(size == 5 << 20);
  CHECK(stat(1, "pages.pinned_ipc") == 3);  // 5 MiB may begin inside a page, but the first does not
  CHECK(!thrown([&] { CALL(vmm_torch_base_alloc)(&size, &size); }).empty());

  CALL(vmm_torch_record_stream)(a, kSide);
  CALL(vmm_torch_record_stream)(&size, kSide);  // a tensor over memory of others
  free(a, 5 << 20, 1, kStream);
  CHECK(stat(1, "requested_bytes.all.current") == 0);
}

void limits_and_resets() {
  void* a = CALL(vmm_torch_malloc)(20 << 20, 0, kStream);
  CALL(vmm_torch_free)(a, 20 << 20, 0, kStream);
  CHECK(stat(0, "reserved_bytes.all.current") >= 20 << 20);
  CALL(vmm_torch_reset)();
  CHECK(stat(0, "reserved_bytes.all.current") == 0);
  const uint64_t all = stat(0, "limit_bytes");
  CALL(vmm_torch_memory_fraction)(0.5, 0);
  CHECK(stat(0, "limit_bytes") == all / 2);
  CHECK(!thrown([&] { CALL(vmm_torch_malloc)(static_cast<ssize_t>(all / 2 + 1), 0, kStream); }).empty());
  CALL(vmm_torch_memory_fraction)(1.0, 0);  // of the device, not of the half
  CHECK(stat(0, "limit_bytes") == all);
}

// Two graphs that share a pool, as CUDAGraph calls it.
void graphs_keep_their_pages() {
  const vmm::MempoolId id{3, 0};
  auto* malloc = CALL(vmm_torch_malloc);
  auto begin = [&] {
    CALL(vmm_torch_begin_allocate_to_pool)(0, id, [](cudaStream_t stream) { return stream == kSide; });
  };
  begin();
  void* inside = malloc(3 << 20, 0, kSide);
  void* outside = malloc(3 << 20, 0, kStream);
  void* elsewhere = malloc(3 << 20, 1, kSide);
  CALL(vmm_torch_end_allocate_to_pool)(0, id);
  void* later = malloc(3 << 20, 0, kSide);
  const uint32_t pool = pool_of(0, inside);
  CHECK(pool != 0 && pool_of(0, outside) == 0 && pool_of(1, elsewhere) == 0 && pool_of(0, later) == 0);
  CHECK(stat(0, "pages.pinned_graph") == 2);

  begin();
  CALL(vmm_torch_end_allocate_to_pool)(0, id);
  CHECK(!thrown([&] { CALL(vmm_torch_end_allocate_to_pool)(0, id); }).empty());
  CALL(vmm_torch_free)(inside, 3 << 20, 0, kSide);
  CALL(vmm_torch_reset)();
  CHECK(stat(0, "pages.pinned_graph") == 2);  // a replay writes there
  CALL(vmm_torch_release_pool)(0, id);
  CHECK(stat(0, "pages.pinned_graph") == 2);
  CALL(vmm_torch_release_pool)(0, id);
  CHECK(stat(0, "pages.pinned_graph") == 0);
  CHECK(!thrown([&] { CALL(vmm_torch_release_pool)(0, id); }).empty());
  for (void* pointer : {outside, later}) CALL(vmm_torch_free)(pointer, 3 << 20, 0, kStream);
  CALL(vmm_torch_free)(elsewhere, 3 << 20, 1, kStream);
}

void threads_choose_pools() {
  uint32_t pool = 0;
  CHECK(CALL(vmm_pool_create)(core, 1, "mine", 0, 0, &pool) == VMM_OK);
  CHECK(CALL(vmm_torch_set_pool)(1, pool) == 0);
  void* mine = CALL(vmm_torch_malloc)(4096, 1, kStream);
  CHECK(pool_of(1, mine) == pool);
  void* of_other = nullptr;
  std::thread([&] { of_other = CALL(vmm_torch_malloc)(4096, 1, kStream); }).join();
  CHECK(pool_of(1, of_other) == 0);
  CHECK(CALL(vmm_torch_set_pool)(1, 0) == pool);
  CALL(vmm_torch_free)(mine, 4096, 1, kStream);
  CALL(vmm_torch_free)(of_other, 4096, 1, kStream);
}

void mem_pools_get_null() {
  CHECK(CALL(vmm_mempool_install)(core) == VMM_OK);
  CHECK(CALL(vmm_mempool_install)(core) == VMM_INVALID);
  void* segment = CALL(vmm_mempool_malloc)(20 << 20, 0, kStream);
  CHECK(segment != nullptr);
  CHECK(CALL(vmm_mempool_malloc)(1ll << 40, 0, kStream) == nullptr);
  CALL(vmm_mempool_free)(segment, 20 << 20, 0, kStream);
  CHECK(stat(0, "allocated_bytes.all.current") == 0);
}

}  // namespace

int main(int, char** words) {
  library = dlopen(words[1], RTLD_NOW | RTLD_LOCAL);
  try {
    CHECK(library != nullptr);
    CHECK(CALL(vmm_create)("driver:host,devices:2,device_bytes:256MiB,check:2", &core) == VMM_OK);
    CHECK(CALL(vmm_torch_install)(core) == VMM_OK);
    CHECK(CALL(vmm_torch_install)(core) == VMM_INVALID);
    CALL(vmm_torch_init)(2);
    serves_and_throws();
    limits_and_resets();
    graphs_keep_their_pages();
    threads_choose_pools();
    mem_pools_get_null();
    for (int device = 0; device < 2; ++device) CHECK(stat(device, "allocated_bytes.all.current") == 0);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  std::puts("ok");
  return 0;
}

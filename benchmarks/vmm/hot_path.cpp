// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
//
// Times single allocations and frees of several heaps on the same sequence of requests.
//
//   hot_path ROUNDS THREADS OPERATIONS LIBRARY_OF_VMM [NAME=LIBRARY ...]
//
// LIVE blocks are live all the time: each operation frees a random one and allocates another size in its
// place. The time stamp counter is read around every call; what reading it costs is subtracted. Nobody
// touches the memory. One line of JSON for each round, mix and heap.

#include <dlfcn.h>
#include <pthread.h>
#include <time.h>
#include <x86intrin.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "vmm.h"

namespace {

constexpr int kLive = 2000;
constexpr uint64_t kKiB = 1024, kMiB = 1024 * kKiB;

struct Mix {
  const char* name;
  double median, sigma;  // of the lognormal sizes
  uint64_t most;
};
constexpr Mix kMixes[] = {
    {"lognormal", 256.0 * kKiB, 2.0, 64 * kMiB},
    {"up to 64 KiB", 4.0 * kKiB, 1.5, 64 * kKiB},
};

struct Heap {
  std::string name;
  std::function<bool()> open;  // anew for every measurement
  void* (*allocate)(size_t size);
  void (*release)(void* pointer);
  std::function<void()> close;
};

// ---- The allocator of this project --------------------------------------------------------------

struct Vmm {
  decltype(&vmm_create) create;
  decltype(&vmm_destroy) destroy;
  decltype(&vmm_allocate) allocate;
  decltype(&vmm_deallocate) deallocate;
  decltype(&vmm_last_error) last_error;
  vmm_allocator* allocator = nullptr;
} vmm;

void* vmm_heap_allocate(size_t size) {
  vmm_request request{};
  request.size = size;
  void* pointer = nullptr;
  if (vmm.allocate(vmm.allocator, &request, &pointer) != VMM_OK) std::abort();
  return pointer;
}

void vmm_heap_release(void* pointer) {
  if (vmm.deallocate(vmm.allocator, 0, pointer) != VMM_OK) std::abort();
}

template <class F>
bool load(void* library, const char* name, F* out) {
  *out = reinterpret_cast<F>(dlsym(library, name));
  return *out != nullptr;
}

bool load_vmm(const char* path) {
  void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) std::fprintf(stderr, "%s\n", dlerror());
  return library != nullptr && load(library, "vmm_create", &vmm.create) && load(library, "vmm_destroy", &vmm.destroy) &&
         load(library, "vmm_allocate", &vmm.allocate) && load(library, "vmm_deallocate", &vmm.deallocate) &&
         load(library, "vmm_last_error", &vmm.last_error);
}

bool open_vmm() {
  if (vmm.create("driver:null,device_bytes:256GiB,counting:0", &vmm.allocator) == VMM_OK) return true;
  std::fprintf(stderr, "%s\n", vmm.last_error());
  return false;
}

// ---- Others -------------------------------------------------------------------------------------

// A function pointer per library: each gets a slot of its own, since heaps take plain functions.
constexpr int kOthers = 8;
void* (*other_malloc[kOthers])(size_t);
void (*other_free[kOthers])(void*);

template <int N>
void* other_allocate(size_t size) {
  return other_malloc[N](size);
}
template <int N>
void other_release(void* pointer) {
  other_free[N](pointer);
}

template <int N = 0>
void assign(int index, Heap* heap) {
  if constexpr (N < kOthers) {
    if (index == N) {
      heap->allocate = other_allocate<N>;
      heap->release = other_release<N>;
    } else {
      assign<N + 1>(index, heap);
    }
  }
}

bool load_other(const std::string& name, const std::string& path, int index, Heap* heap) {
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
  if (library == nullptr) {
    std::fprintf(stderr, "%s: %s\n", name.c_str(), dlerror());
    return false;
  }
  const bool found =
      (load(library, "heap_allocate", &other_malloc[index]) && load(library, "heap_release", &other_free[index])) ||
      (load(library, "mi_malloc", &other_malloc[index]) && load(library, "mi_free", &other_free[index])) ||
      (load(library, "malloc", &other_malloc[index]) && load(library, "free", &other_free[index]));
  if (!found) return false;
  heap->name = name;
  heap->open = [] { return true; };
  heap->close = [] {};
  assign(index, heap);
  return true;
}

// ---- Measuring ----------------------------------------------------------------------------------

struct Operation {
  uint32_t place;
  uint64_t size;
};

std::vector<Operation> sequence(const Mix& mix, int live, size_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::lognormal_distribution<double> sizes(std::log(mix.median), mix.sigma);
  std::vector<Operation> result(count);
  for (size_t i = 0; i < count; ++i) {
    const double size = std::min(sizes(random), static_cast<double>(mix.most));
    const auto place = i < static_cast<size_t>(live) ? i : random() % static_cast<size_t>(live);
    result[i] = {static_cast<uint32_t>(place), std::max<uint64_t>(1, static_cast<uint64_t>(size))};
  }
  return result;
}

inline uint64_t ticks() {
  _mm_lfence();
  const uint64_t now = __rdtsc();
  _mm_lfence();
  return now;
}

double seconds() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

double ticks_per_ns() {
  const double begin = seconds();
  const uint64_t first = ticks();
  while (seconds() - begin < 0.1) {
  }
  return static_cast<double>(ticks() - first) / (seconds() - begin) * 1e-9;
}

double at(std::vector<uint32_t>* samples, double fraction) {
  const auto middle = samples->begin() + static_cast<std::ptrdiff_t>(fraction * static_cast<double>(samples->size()));
  std::nth_element(samples->begin(), middle, samples->end());
  return *middle;
}

// What two reads with nothing between them measure.
double clock_ticks() {
  std::vector<uint32_t> samples(100000);
  for (uint32_t& sample : samples) {
    const uint64_t begin = ticks();
    sample = static_cast<uint32_t>(ticks() - begin);
  }
  return at(&samples, 0.5);
}

void release_all(const Heap& heap, std::vector<void*>* blocks) {
  for (void*& block : *blocks) {
    if (block != nullptr) heap.release(block);
    block = nullptr;
  }
}

void one_thread(const Heap& heap, const Mix& mix, const std::vector<Operation>& work, int round, double rate) {
  std::vector<void*> blocks(kLive, nullptr);
  std::vector<uint32_t> allocations, frees;
  allocations.reserve(work.size());
  frees.reserve(work.size());
  const size_t warm = work.size() / 5;
  for (size_t i = 0; i < work.size(); ++i) {
    void*& block = blocks[work[i].place];
    const uint64_t begin = ticks();
    if (block != nullptr) heap.release(block);
    const uint64_t middle = ticks();
    block = heap.allocate(work[i].size);
    const uint64_t end = ticks();
    if (i < warm) continue;
    frees.push_back(static_cast<uint32_t>(middle - begin));
    allocations.push_back(static_cast<uint32_t>(end - middle));
  }
  release_all(heap, &blocks);
  const double clock = clock_ticks();
  auto ns = [&](std::vector<uint32_t>* samples, double fraction) {
    return std::max(0.0, at(samples, fraction) - clock) / rate;
  };
  std::printf(
      "{\"round\": %d, \"mix\": \"%s\", \"heap\": \"%s\", \"alloc_p50_ns\": %.1f, \"alloc_p99_ns\": %.1f, "
      "\"free_p50_ns\": %.1f, \"free_p99_ns\": %.1f, \"clock_ns\": %.1f}\n",
      round, mix.name, heap.name.c_str(), ns(&allocations, 0.5), ns(&allocations, 0.99), ns(&frees, 0.5),
      ns(&frees, 0.99), clock / rate);
}

void many_threads(const Heap& heap, const Mix& mix, int threads, size_t operations, int round) {
  const int live = kLive / threads;
  std::vector<std::vector<Operation>> work;
  for (int i = 0; i < threads; ++i) work.push_back(sequence(mix, live, operations, 1000 + static_cast<uint64_t>(i)));
  pthread_barrier_t barrier;
  pthread_barrier_init(&barrier, nullptr, static_cast<unsigned>(threads) + 1);
  std::vector<std::thread> running;
  for (int i = 0; i < threads; ++i) {
    running.emplace_back([&, i] {
      std::vector<void*> blocks(static_cast<size_t>(live), nullptr);
      const auto& mine = work[static_cast<size_t>(i)];
      for (size_t k = 0; k < mine.size(); ++k) {
        if (k == mine.size() / 5) pthread_barrier_wait(&barrier);
        void*& block = blocks[mine[k].place];
        if (block != nullptr) heap.release(block);
        block = heap.allocate(mine[k].size);
      }
      pthread_barrier_wait(&barrier);
      release_all(heap, &blocks);
    });
  }
  pthread_barrier_wait(&barrier);
  const double begin = seconds();
  pthread_barrier_wait(&barrier);
  const double took = seconds() - begin;
  for (std::thread& thread : running) thread.join();
  pthread_barrier_destroy(&barrier);
  const double calls = 2.0 * threads * static_cast<double>(operations - operations / 5);
  std::printf("{\"round\": %d, \"mix\": \"%s\", \"heap\": \"%s\", \"threads\": %d, \"operations_per_second\": %.0f}\n",
              round, mix.name, heap.name.c_str(), threads, calls / took);
}

}  // namespace

int main(int count, char** words) {
  if (count < 5) {
    std::fprintf(stderr, "hot_path ROUNDS THREADS OPERATIONS LIBRARY_OF_VMM [NAME=LIBRARY ...]\n");
    return 2;
  }
  const int rounds = std::atoi(words[1]), threads = std::atoi(words[2]);
  const auto operations = static_cast<size_t>(std::atoll(words[3]));
  if (!load_vmm(words[4])) return 1;
  std::vector<Heap> heaps = {
      {"vmm", open_vmm, vmm_heap_allocate, vmm_heap_release, [] { vmm.destroy(vmm.allocator); }},
      {"glibc", [] { return true; }, std::malloc, std::free, [] {}},
  };
  for (int i = 5; i < count; ++i) {
    const std::string word = words[i];
    const size_t equals = word.find('=');
    Heap heap;
    if (load_other(word.substr(0, equals), word.substr(equals + 1), i - 5, &heap)) heaps.push_back(heap);
  }
  const double rate = ticks_per_ns();
  for (int round = 0; round < rounds; ++round) {
    for (const Mix& mix : kMixes) {
      const std::vector<Operation> work = sequence(mix, kLive, operations, 1);
      for (const Heap& heap : heaps) {
        if (!heap.open()) return 1;
        one_thread(heap, mix, work, round, rate);
        heap.close();
        if (!heap.open()) return 1;
        many_threads(heap, mix, threads, operations, round);
        heap.close();
        std::fflush(stdout);
      }
    }
  }
  return 0;
}

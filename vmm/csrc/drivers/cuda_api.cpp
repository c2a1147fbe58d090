// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
#include "drivers/cuda_api.h"

#include <dlfcn.h>

namespace vmm::cuda {
namespace {

constexpr char kLibrary[] = "libcuda.so.1";

// Both forms of cuGetProcAddress: five arguments since CUDA 12.0, four before.
using GetProcV2 = Result (*)(const char*, void**, int, uint64_t, int*);
using GetProcV1 = Result (*)(const char*, void**, int, uint64_t);

struct Finder {
  void* library;
  GetProcV2 v2;
  GetProcV1 v1;

  // The form that a version of CUDA introduced; by the exported name where the library cannot be asked.
  void* find(const char* name, const char* suffix, int version) const {
    void* function = nullptr;
    int found = 0;  // 0 is success here as well
    if (v2 && v2(name, &function, version, 0, &found) == kSuccess && found == 0 && function) return function;
    if (!v2 && v1 && v1(name, &function, version, 0) == kSuccess && function) return function;
    return dlsym(library, (std::string(name) + suffix).c_str());
  }
};

struct Loaded {
  Api api;
  std::string error;

  Loaded() { error = load(); }

 private:
  std::string load() {
    void* library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
    if (!library) return std::string("driver:cuda needs ") + kLibrary + " of the NVIDIA driver: " + dlerror();
    const Finder finder{library, reinterpret_cast<GetProcV2>(dlsym(library, "cuGetProcAddress_v2")),
                        reinterpret_cast<GetProcV1>(dlsym(library, "cuGetProcAddress"))};
    const char* missing = nullptr;
#define VMM_LOAD(member, name, suffix, version, arguments)                                  \
  api.member = reinterpret_cast<decltype(api.member)>(finder.find(#name, suffix, version)); \
  if (!api.member && !missing) missing = #name;
    VMM_CUDA_CALLS(VMM_LOAD)
#undef VMM_LOAD
    if (missing) {
      return std::string("driver:cuda needs the NVIDIA driver of CUDA 11.0 or later: ") + kLibrary + " has no " +
             missing;
    }
    const Result result = api.init(0);
    if (result == kSuccess) return "";
    return "driver:cuda needs a CUDA device: cuInit returned " + result_name(api, result);
  }
};

}  // namespace

const Api* api(std::string* error) {
  // Not destroyed: whoever still runs at the exit of the process may hold the table.
  static const Loaded& loaded = *new Loaded;
  if (loaded.error.empty()) return &loaded.api;
  *error = loaded.error;
  return nullptr;
}

std::string result_name(const Api& api, Result result) {
  const char* name = nullptr;
  if (api.get_error_name(result, &name) == kSuccess && name) return name;
  return "the error " + std::to_string(result);
}

}  // namespace vmm::cuda

// Stands in for NVIDIA's driver: modules are libraries that the emulator was compiled into, named
// in their image as "EMULATED <path> <namespace>"; launches run at once.

#include <dlfcn.h>

#include <cstdio>
#include <cstring>
#include <string>

namespace {

constexpr int kSuccess = 0, kInvalidImage = 200, kNotFound = 500, kLaunchFailed = 719;

using Emulated = const char* (*)(unsigned blocks, unsigned threads, void** values, unsigned order);

struct Module {
  void* library;
  std::string space;
};

int loads = 0;

}  // namespace

extern "C" {

int fake_loads() { return loads; }

int cuCtxGetDevice(int* device) {
  *device = 0;
  return kSuccess;
}

int cuModuleLoadData(void** module, const void* image) {
  char path[512], space[64];
  if (sscanf(static_cast<const char*>(image), "EMULATED %511s %63s", path, space) != 2) {
    return kInvalidImage;
  }
  void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return kInvalidImage;
  ++loads;
  *module = new Module{library, space};
  return kSuccess;
}

int cuModuleGetFunction(void** function, void* module, const char* name) {
  const auto* from = static_cast<Module*>(module);
  *function = dlsym(from->library, (from->space + "_" + name).c_str());
  return *function == nullptr ? kNotFound : kSuccess;
}

int cuLaunchKernel(void* function, unsigned blocks, unsigned, unsigned, unsigned threads, unsigned,
                   unsigned, unsigned, void*, void** arguments, void**) {
  const char* error = reinterpret_cast<Emulated>(function)(blocks, threads, arguments, 0);
  return error == nullptr ? kSuccess : kLaunchFailed;
}

int cuGetErrorName(int result, const char** name) {
  *name = result == kInvalidImage ? "CUDA_ERROR_INVALID_IMAGE"
          : result == kNotFound   ? "CUDA_ERROR_NOT_FOUND"
                                  : "CUDA_ERROR_LAUNCH_FAILED";
  return kSuccess;
}

}  // extern "C"

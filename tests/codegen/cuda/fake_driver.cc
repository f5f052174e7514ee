// Stands in for NVIDIA's driver: modules are libraries that the emulator was compiled into, named
// in their image as "EMULATED <path> <namespace>"; launches run at once.  There are several devices,
// of which one is current; what was loaded on one cannot be launched on another.

#include <dlfcn.h>

#include <cstdio>
#include <cstring>
#include <string>

namespace {

constexpr int kSuccess = 0, kInvalidImage = 200, kInvalidHandle = 400, kNotFound = 500,
              kLaunchFailed = 719;

using Emulated = const char* (*)(unsigned blocks, unsigned threads, void** values, unsigned order);

struct Module {
  void* library;
  std::string space;
  int device;
};

struct Function {
  Emulated run;
  int device;
};

int loads = 0, current_device = 0;

}  // namespace

extern "C" {

int fake_loads() { return loads; }
void fake_use_device(int device) { current_device = device; }

int cuCtxGetDevice(int* device) {
  *device = current_device;
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
  *module = new Module{library, space, current_device};
  return kSuccess;
}

int cuModuleGetFunction(void** function, void* module, const char* name) {
  const auto* from = static_cast<Module*>(module);
  void* found = dlsym(from->library, (from->space + "_" + name).c_str());
  if (found == nullptr) return kNotFound;
  *function = new Function{reinterpret_cast<Emulated>(found), from->device};
  return kSuccess;
}

int cuLaunchKernel(void* function, unsigned blocks, unsigned, unsigned, unsigned threads, unsigned,
                   unsigned, unsigned, void*, void** arguments, void**) {
  const auto* kernel = static_cast<Function*>(function);
  if (kernel->device != current_device) return kInvalidHandle;
  const char* error = kernel->run(blocks, threads, arguments, 0);
  return error == nullptr ? kSuccess : kLaunchFailed;
}

int cuGetErrorName(int result, const char** name) {
  *name = result == kInvalidImage    ? "CUDA_ERROR_INVALID_IMAGE"
          : result == kInvalidHandle ? "CUDA_ERROR_INVALID_HANDLE"
          : result == kNotFound      ? "CUDA_ERROR_NOT_FOUND"
                                     : "CUDA_ERROR_LAUNCH_FAILED";
  return kSuccess;
}

}  // extern "C"

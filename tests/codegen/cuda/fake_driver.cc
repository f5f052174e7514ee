// Stands in for NVIDIA's driver: modules are libraries that the emulator was compiled into, named
// in their image as "EMULATED <path> <namespace>"; launches run at once.  There are several devices,
// of which one is current; what was loaded on one cannot be launched on another.

#include <dlfcn.h>

#include <cstdio>
#include <cstring>
#include <mutex>
#include <string>

namespace {

constexpr int kSuccess = 0, kInvalidValue = 1, kInvalidImage = 200, kInvalidContext = 201,
              kInvalidHandle = 400, kNotFound = 500, kLaunchFailed = 719, kCaptureUnsupported = 900;

// What a block may have without asking, and at all.
constexpr int kSharedBytes = 48 * 1024, kMostSharedBytes = 227 * 1024, kSharedAttribute = 8;

using Emulated = const char* (*)(unsigned blocks, unsigned threads, unsigned shared_bytes,
                                 void** values, unsigned order);

struct Module {
  void* library;
  std::string space;
  int device;
};

struct Function {
  Emulated run;
  int device;
  int shared_bytes;
};

int loads = 0, current_device = 0;
bool capturing = false;

}  // namespace

extern "C" {

int fake_loads() { return loads; }
// Below zero there is no context.
void fake_use_device(int device) { current_device = device; }
// As while a stream is captured into a graph: launches, and nothing that would wait or allocate.
void fake_capture(int on) { capturing = on != 0; }

int cuCtxGetDevice(int* device) {
  *device = current_device;
  return current_device < 0 ? kInvalidContext : kSuccess;
}

int cuModuleLoadData(void** module, const void* image) {
  if (capturing) return kCaptureUnsupported;
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
  if (capturing) return kCaptureUnsupported;
  const auto* from = static_cast<Module*>(module);
  void* found = dlsym(from->library, (from->space + "_" + name).c_str());
  if (found == nullptr) return kNotFound;
  *function = new Function{reinterpret_cast<Emulated>(found), from->device, kSharedBytes};
  return kSuccess;
}

int cuFuncSetAttribute(void* function, int attribute, int value) {
  if (capturing) return kCaptureUnsupported;
  if (attribute != kSharedAttribute || value > kMostSharedBytes) return kInvalidValue;
  static_cast<Function*>(function)->shared_bytes = value;
  return kSuccess;
}

int cuLaunchKernel(void* function, unsigned blocks, unsigned, unsigned, unsigned threads, unsigned,
                   unsigned, unsigned shared_bytes, void*, void** arguments, void**) {
  const auto* kernel = static_cast<Function*>(function);
  if (kernel->device != current_device) return kInvalidHandle;
  if (static_cast<int>(shared_bytes) > kernel->shared_bytes) return kInvalidValue;
  // One after the other, as on a stream: where XLA stands on CPUs it calls from several threads.
  static std::mutex running;
  const std::lock_guard<std::mutex> lock(running);
  const char* error = kernel->run(blocks, threads, shared_bytes, arguments, 0);
  return error == nullptr ? kSuccess : kLaunchFailed;
}

int cuGetErrorName(int result, const char** name) {
  switch (result) {
    case kInvalidValue: *name = "CUDA_ERROR_INVALID_VALUE"; break;
    case kInvalidImage: *name = "CUDA_ERROR_INVALID_IMAGE"; break;
    case kInvalidContext: *name = "CUDA_ERROR_INVALID_CONTEXT"; break;
    case kInvalidHandle: *name = "CUDA_ERROR_INVALID_HANDLE"; break;
    case kNotFound: *name = "CUDA_ERROR_NOT_FOUND"; break;
    case kCaptureUnsupported: *name = "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"; break;
    default: *name = "CUDA_ERROR_LAUNCH_FAILED";
  }
  return kSuccess;
}

}  // extern "C"

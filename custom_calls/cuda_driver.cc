#include "cuda_driver.h"

#include <dlfcn.h>

namespace mlc {
namespace {

std::string& StandIn() {
  static std::string& path = *new std::string;
  return path;
}

template <class Function>
void Find(void* library, const char* name, Function& function, std::string& error) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  if (function == nullptr) error += std::string(error.empty() ? "it lacks " : ", ") + name;
}

CudaDriver Load() {
  CudaDriver driver{};
  driver.is_stand_in = !StandIn().empty();
  const char* path = driver.is_stand_in ? StandIn().c_str() : "libcuda.so.1";
  void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    driver.error = dlerror();
    return driver;
  }
  Find(library, "cuCtxGetDevice", driver.GetDevice, driver.error);
  Find(library, "cuModuleLoadData", driver.LoadModule, driver.error);
  Find(library, "cuModuleGetFunction", driver.GetFunction, driver.error);
  Find(library, "cuFuncSetAttribute", driver.SetAttribute, driver.error);
  Find(library, "cuLaunchKernel", driver.Launch, driver.error);
  Find(library, "cuGetErrorName", driver.GetErrorName, driver.error);
  return driver;
}

}  // namespace

const CudaDriver& CudaDriver::Get() {
  static const CudaDriver& driver = *new CudaDriver(Load());
  return driver;
}

void CudaDriver::Use(const char* path) { StandIn() = path; }

std::string CudaDriver::Describe(const char* call, CudaResult result) const {
  const char* name = nullptr;
  if (GetErrorName(result, &name) != 0 || name == nullptr) name = "unknown";
  return std::string(call) + ": " + name + " (" + std::to_string(result) + ")";
}

}  // namespace mlc

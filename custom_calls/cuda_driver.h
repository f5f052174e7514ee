// The few functions of NVIDIA's driver that launches need, found at run time: nothing of CUDA is
// needed to build this library, and nothing to load it.
#ifndef HLO_MLC_CUDA_DRIVER_H_
#define HLO_MLC_CUDA_DRIVER_H_

#include <string>

namespace mlc {

// Types and values as in the CUDA Driver API.
using CudaResult = int;
using CudaModule = void*;
using CudaFunction = void*;
using CudaStream = void*;
constexpr int kMostDynamicSharedBytes = 8;  // CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES

struct CudaDriver {
  CudaResult (*GetDevice)(int* device);  // that of the current context
  CudaResult (*LoadModule)(CudaModule* module, const void* image);
  CudaResult (*GetFunction)(CudaFunction* function, CudaModule module, const char* name);
  CudaResult (*SetAttribute)(CudaFunction function, int attribute, int value);
  CudaResult (*Launch)(CudaFunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                       unsigned block_x, unsigned block_y, unsigned block_z,
                       unsigned shared_bytes, CudaStream stream, void** arguments, void** extra);
  CudaResult (*GetErrorName)(CudaResult result, const char** name);

  std::string error;         // why there is no driver; empty if there is one
  bool is_stand_in = false;  // a library that tests put in the driver's place

  // What went wrong in a call, in words.
  std::string Describe(const char* call, CudaResult result) const;

  static const CudaDriver& Get();
  // Takes the driver from this library, not from the system's; only before the first use.
  static void Use(const char* path);
};

}  // namespace mlc

#endif  // HLO_MLC_CUDA_DRIVER_H_

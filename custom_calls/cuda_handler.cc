// The custom call "hlo_mlc_kernel" on NVIDIA GPUs: puts the launches of the kernel that its `id`
// attribute names on XLA's stream.
//
// The id is looked up when the program is loaded (instantiate), machine code goes to the device
// before the first execution (initialize), so that an execution only launches: XLA may capture it
// into a command buffer.

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cuda_driver.h"
#include "cuda_program.h"
#include "mlc_abi.h"
#include "xla/ffi/api/ffi.h"

namespace mlc {
namespace {

namespace ffi = ::xla::ffi;

struct CudaKernelState {
  static ffi::TypeId id;
  std::shared_ptr<CudaProgram> program;
};
ffi::TypeId CudaKernelState::id = {};

// Every stage is given the call's attributes; only this one looks at them. Kernels for GPUs do
// not go by blocks of rows, which `dims` would be of.
using Dims = ffi::Span<const int64_t>;

ffi::ErrorOr<std::unique_ptr<CudaKernelState>> Instantiate(std::string_view id, Dims) {
  std::shared_ptr<CudaProgram> program = CudaPrograms::Get().Find(id);
  if (program == nullptr) {
    return ffi::Unexpected(ffi::Error(
        ffi::ErrorCode::kNotFound, "hlo_mlc: this program calls kernel '" + std::string(id) +
                                       "', which was not compiled for GPUs in this process"));
  }
  auto state = std::make_unique<CudaKernelState>();
  state->program = std::move(program);
  return state;
}

ffi::Error Outcome(const std::string& error) {
  return error.empty() ? ffi::Error::Success() : ffi::Error::Internal("hlo_mlc: " + error);
}

ffi::Error Initialize(CudaKernelState* state, std::string_view, Dims) {
  return Outcome(state->program->Load());
}

ffi::Error Execute(CudaStream stream, CudaKernelState* state, ffi::RemainingArgs operands,
                   ffi::RemainingRets results, std::string_view, Dims) {
  std::vector<void*> buffers;
  buffers.reserve(operands.size() + results.size());
  for (size_t n = 0; n < operands.size(); ++n) {
    const auto buffer = operands.get<ffi::AnyBuffer>(n);
    if (buffer.has_error()) return buffer.error();
    buffers.push_back(buffer->untyped_data());
  }
  int64_t last_bytes = 0;
  for (size_t n = 0; n < results.size(); ++n) {
    auto buffer = results.get<ffi::AnyBuffer>(n);
    if (buffer.has_error()) return buffer.error();
    buffers.push_back((*buffer)->untyped_data());
    last_bytes = static_cast<int64_t>((*buffer)->size_bytes());
  }
  return Outcome(state->program->Launch(stream, buffers.data(),
                                        static_cast<int64_t>(buffers.size()), last_bytes));
}

// Where tests put another library in the driver's place there are no streams either.
ffi::Error ExecuteOnHost(CudaKernelState* state, ffi::RemainingArgs operands,
                         ffi::RemainingRets results, std::string_view id, Dims dims) {
  if (!CudaDriver::Get().is_stand_in) {
    return ffi::Error::Internal("hlo_mlc: a kernel for GPUs was called on another device");
  }
  return Execute(nullptr, state, operands, results, id, dims);
}

XLA_FFI_DEFINE_HANDLER(kInstantiate, Instantiate,
                       ffi::Ffi::BindInstantiate().Attr<std::string_view>("id").Attr<Dims>("dims"));
XLA_FFI_DEFINE_HANDLER(kInitialize, Initialize,
                       ffi::Ffi::Bind<ffi::ExecutionStage::kInitialize>()
                           .Ctx<ffi::State<CudaKernelState>>()
                           .Attr<std::string_view>("id")
                           .Attr<Dims>("dims"));
XLA_FFI_DEFINE_HANDLER(kExecute, Execute,
                       ffi::Ffi::Bind()
                           .Ctx<ffi::PlatformStream<CudaStream>>()
                           .Ctx<ffi::State<CudaKernelState>>()
                           .RemainingArgs()
                           .RemainingRets()
                           .Attr<std::string_view>("id")
                           .Attr<Dims>("dims"),
                       {ffi::Traits::kCmdBufferCompatible});
XLA_FFI_DEFINE_HANDLER(kExecuteOnHost, ExecuteOnHost,
                       ffi::Ffi::Bind()
                           .Ctx<ffi::State<CudaKernelState>>()
                           .RemainingArgs()
                           .RemainingRets()
                           .Attr<std::string_view>("id")
                           .Attr<Dims>("dims"));

constexpr int kDone = 1;
constexpr int kNo = 0;
constexpr int kNoMemory = -1;

}  // namespace
}  // namespace mlc

extern "C" {

MLC_EXPORT void mlc_cuda_use_driver(const char* path) { mlc::CudaDriver::Use(path); }

MLC_EXPORT int mlc_cuda_set(const char* id, const char* image, int64_t image_bytes,
                            const char* const* functions, int64_t function_count,
                            const int64_t* plan, int64_t plan_size, int64_t scratch_bytes) {
  try {
    std::vector<std::string> names(functions, functions + function_count);
    mlc::CudaPrograms::Get().Set(
        id, std::make_shared<mlc::CudaProgram>(
                id, std::string(image, static_cast<size_t>(image_bytes)), std::move(names), plan,
                plan_size, scratch_bytes));
    return mlc::kDone;
  } catch (const std::invalid_argument&) {
    return mlc::kNo;
  } catch (const std::bad_alloc&) {
    return mlc::kNoMemory;
  }
}

MLC_EXPORT XLA_FFI_Error* mlc_cuda_ffi_instantiate(XLA_FFI_CallFrame* frame) {
  return mlc::kInstantiate(frame);
}
MLC_EXPORT XLA_FFI_Error* mlc_cuda_ffi_initialize(XLA_FFI_CallFrame* frame) {
  return mlc::kInitialize(frame);
}
MLC_EXPORT XLA_FFI_Error* mlc_cuda_ffi_execute(XLA_FFI_CallFrame* frame) {
  return mlc::kExecute(frame);
}
MLC_EXPORT XLA_FFI_Error* mlc_cuda_ffi_execute_on_host(XLA_FFI_CallFrame* frame) {
  return mlc::kExecuteOnHost(frame);
}
MLC_EXPORT void* mlc_cuda_ffi_state_type_id(void) { return &mlc::CudaKernelState::id; }
MLC_EXPORT void* mlc_cuda_ffi_state_type_info(void) {
  static xla::ffi::TypeInfo info = xla::ffi::MakeTypeInfo<mlc::CudaKernelState>();
  return &info;
}

}  // extern "C"

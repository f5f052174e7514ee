// The one XLA custom call, "hlo_mlc_kernel": runs the kernel that its `id` attribute names.
//
// At load time (instantiate) the id is looked up in the variant table; an execution then takes the
// current variant from its slot, without any search.

#include <cstdint>
#include <memory>
#include <new>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "huge_pages.h"
#include "mlc_abi.h"
#include "thread_team.h"
#include "trace.h"
#include "variant_table.h"
#include "xla/ffi/api/ffi.h"

namespace mlc {
namespace {

namespace ffi = ::xla::ffi;

// What a loaded executable holds for each of its custom calls.
struct KernelState {
  static ffi::TypeId id;

  std::shared_ptr<Slot> slot;
  std::vector<int64_t> dims;
};
ffi::TypeId KernelState::id = {};

class XlaExecutor final : public Executor {
 public:
  explicit XlaExecutor(ffi::ThreadPool& pool) : pool_(pool) {}
  void Schedule(Job* job) override {
    pool_.Schedule([job] { job->Run(); });
  }

 private:
  ffi::ThreadPool& pool_;
};

ffi::ErrorOr<std::unique_ptr<KernelState>> Instantiate(std::string_view id,
                                                       ffi::Span<const int64_t> dims) {
  std::shared_ptr<Slot> slot = VariantTable::Get().Find(id);
  if (slot == nullptr) {
    return ffi::Unexpected(ffi::Error(
        ffi::ErrorCode::kNotFound,
        "hlo_mlc: this program calls kernel '" + std::string(id) +
            "', which is not loaded in this process. Kernels are loaded when a program is compiled "
            "by hlo_mlc; for a program that was exported or cached, load the kernel bundle saved "
            "with it before running it, or compile it again here."));
  }
  auto state = std::make_unique<KernelState>();
  state->slot = std::move(slot);
  state->dims.assign(dims.begin(), dims.end());
  return state;
}

int64_t BytesOf(const XLA_FFI_Buffer& buffer) {
  int64_t bytes = static_cast<int64_t>(ffi::ByteWidth(static_cast<ffi::DataType>(buffer.dtype)));
  for (int64_t i = 0; i < buffer.rank; ++i) bytes *= buffer.dims[i];
  return bytes;
}

// Operand and result addresses in one array, on the stack unless there are unusually many.
class BufferList {
 public:
  explicit BufferList(size_t count) {
    if (count > kInline) {
      heap_ = std::make_unique<void*[]>(count);
      data_ = heap_.get();
    }
  }
  void Add(void* buffer) { data_[size_++] = buffer; }
  void** data() { return data_; }

 private:
  static constexpr size_t kInline = 32;
  void* inline_[kInline];
  std::unique_ptr<void*[]> heap_;
  void** data_ = inline_;
  size_t size_ = 0;
};

XLA_FFI_DEFINE_HANDLER(
    kInstantiate, Instantiate,
    ffi::Ffi::BindInstantiate().Attr<std::string_view>("id").Attr<ffi::Span<const int64_t>>(
        "dims"));

// Answers XLA's question about API version and traits, in the way of the headers we build with.
XLA_FFI_DEFINE_HANDLER(kDescribe, [] { return ffi::Error::Success(); }, ffi::Ffi::Bind());

// Reads the call frame's buffers itself: the headers' decoder wraps and checks each one, which
// takes 4 ns per buffer, a fifth of the time of a call with eight of them. Attributes are not
// looked at, since all that was in them is in the state.
XLA_FFI_Error* Execute(XLA_FFI_CallFrame* frame) {
  ffi::DiagnosticEngine diagnostic;
  const auto state =
      ffi::CtxDecoding<ffi::State<KernelState>>::Decode(frame->api, frame->ctx, diagnostic);
  if (!state) {
    return ffi::internal::CreateError(frame->api, ffi::Error::Internal(diagnostic.Result()));
  }
  const int64_t operands = frame->args.size;
  const int64_t results = frame->rets.size;
  BufferList buffers(static_cast<size_t>(operands + results));
  for (int64_t i = 0; i < operands; ++i) {
    buffers.Add(static_cast<const XLA_FFI_Buffer*>(frame->args.args[i])->data);
  }
  for (int64_t i = 0; i < results; ++i) {
    const auto* result = static_cast<const XLA_FFI_Buffer*>(frame->rets.rets[i]);
    PreferHugePages(result->data, BytesOf(*result));
    buffers.Add(result->data);
  }
  ffi::ThreadPool pool =
      *ffi::CtxDecoding<ffi::ThreadPool>::Decode(frame->api, frame->ctx, diagnostic);
  XlaExecutor executor(pool);
  Slot& slot = *(*state)->slot;
  const Tracer tracer(slot.id());
  ThreadTeam team(executor, pool.num_threads(), tracer);
  bool ran = false;
  tracer.Run(MLC_WHOLE_KERNEL,
             [&] { ran = RunVariant(slot, team, buffers.data(), (*state)->dims.data()); });
  if (!ran) {
    return ffi::internal::CreateError(
        frame->api,
        ffi::Error(ffi::ErrorCode::kResourceExhausted,
                   "hlo_mlc: no memory for a kernel's scratch of " +
                       std::to_string(slot.current().scratch_bytes) + " bytes"));
  }
  if (!team.fault().text.empty()) {
    return ffi::internal::CreateError(
        frame->api, ffi::Error(ffi::ErrorCode::kInternal, slot.Located(team.fault())));
  }
  return nullptr;
}

// No exception passes through XLA.
template <typename Handler>
XLA_FFI_Error* WithinMemory(XLA_FFI_CallFrame* frame, const Handler& handler) {
  try {
    return handler(frame);
  } catch (const std::bad_alloc&) {
    return ffi::internal::CreateError(
        frame->api, ffi::Error(ffi::ErrorCode::kResourceExhausted,
                               "hlo_mlc: no memory to call a kernel"));
  }
}

}  // namespace
}  // namespace mlc

// What a host registers with XLA: two handlers, and the type of the state between them.
extern "C" {

MLC_EXPORT XLA_FFI_Error* mlc_ffi_instantiate(XLA_FFI_CallFrame* frame) {
  return mlc::WithinMemory(frame, mlc::kInstantiate);
}

MLC_EXPORT XLA_FFI_Error* mlc_ffi_execute(XLA_FFI_CallFrame* frame) {
  const auto* extension = frame->extension_start;  // whose type is called otherwise since 0.11
  const bool asked = extension != nullptr && extension->type == XLA_FFI_Extension_Metadata;
  return asked ? mlc::kDescribe(frame) : mlc::WithinMemory(frame, mlc::Execute);
}

MLC_EXPORT void* mlc_ffi_state_type_id(void) { return &mlc::KernelState::id; }

MLC_EXPORT void* mlc_ffi_state_type_info(void) {
  static xla::ffi::TypeInfo info = xla::ffi::MakeTypeInfo<mlc::KernelState>();
  return &info;
}

}  // extern "C"

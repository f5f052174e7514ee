// The one XLA custom call, "hlo_mlc_kernel": runs the kernel that its `id` attribute names; or
// several, where that is "first@64,second@1", in blocks of so many rows each. `dims`, else empty, has
// the number of rows, of groups and of folds (row_blocks.h); for each of the kernels' operands and
// results the bytes of one row, 0 where it has none; and the bytes of each fold. Folds are the last
// operands and results of kernels; as many results of the call, spare memory for them, follow.
//
// At load time (instantiate) ids are looked up in the variant table; an execution then takes the
// current variant from its slot, without any search.

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "buffer_list.h"
#include "pages.h"
#include "mlc_abi.h"
#include "row_blocks.h"
#include "thread_team.h"
#include "variant_table.h"
#include "xla/ffi/api/ffi.h"

namespace mlc {
namespace {

namespace ffi = ::xla::ffi;

// What a loaded executable holds for each of its custom calls: a kernel, or kernels for blocks and
// what there is to know of rows, `dims`.
struct KernelState {
  static ffi::TypeId id;

  std::shared_ptr<Slot> slot;
  std::vector<BlockKernel> blocks;
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

ffi::Error NotLoaded(std::string_view id) {
  return ffi::Error(
      ffi::ErrorCode::kNotFound,
      "hlo_mlc: this program calls kernel '" + std::string(id) +
          "', which is not loaded in this process. Kernels are loaded when a program is compiled "
          "by hlo_mlc; for a program that was exported or cached, load the kernel bundle saved "
          "with it before running it, or compile it again here.");
}

constexpr char kRowsFollow = '@';
constexpr char kBlockFollows = ',';

ffi::ErrorOr<std::unique_ptr<KernelState>> Instantiate(std::string_view id,
                                                       ffi::Span<const int64_t> dims) {
  static const bool kept = (KeepFreedMemory(), true);
  static_cast<void>(kept);
  auto state = std::make_unique<KernelState>();
  if (id.find(kRowsFollow) == std::string_view::npos) {
    state->slot = VariantTable::Get().Find(id);
    if (state->slot == nullptr) return ffi::Unexpected(NotLoaded(id));
    return state;
  }
  state->dims.assign(dims.begin(), dims.end());
  while (!id.empty()) {
    const std::string_view one = id.substr(0, id.find(kBlockFollows));
    id.remove_prefix(std::min(one.size() + 1, id.size()));
    const std::string_view name = one.substr(0, one.find(kRowsFollow));
    const std::string rows(one.substr(std::min(name.size() + 1, one.size())));
    state->blocks.push_back({VariantTable::Get().Find(name), std::atoll(rows.c_str())});
    if (state->blocks.back().slot == nullptr) return ffi::Unexpected(NotLoaded(name));
    if (state->blocks.back().rows < 1) {
      return ffi::Unexpected(ffi::Error(
          ffi::ErrorCode::kInvalidArgument,
          "hlo_mlc: expected a block of 1 row or more, got '" + std::string(one) + "'"));
    }
  }
  return state;
}

int64_t BytesOf(const XLA_FFI_Buffer& buffer) {
  int64_t bytes = static_cast<int64_t>(ffi::ByteWidth(static_cast<ffi::DataType>(buffer.dtype)));
  for (int64_t i = 0; i < buffer.rank; ++i) bytes *= buffer.dims[i];
  return bytes;
}

XLA_FFI_DEFINE_HANDLER(
    kInstantiate, Instantiate,
    ffi::Ffi::BindInstantiate().Attr<std::string_view>("id").Attr<ffi::Span<const int64_t>>(
        "dims"));

// Answers XLA's question about API version and traits, in the way of the headers we build with.
XLA_FFI_DEFINE_HANDLER(kDescribe, [] { return ffi::Error::Success(); }, ffi::Ffi::Bind());

const XLA_FFI_Buffer& Operand(const XLA_FFI_CallFrame& frame, int64_t number) {
  return *static_cast<const XLA_FFI_Buffer*>(frame.args.args[number]);
}

// A result, in memory that is ready to be written.
const XLA_FFI_Buffer& Result(const XLA_FFI_CallFrame& frame, int64_t number) {
  const auto& result = *static_cast<const XLA_FFI_Buffer*>(frame.rets.rets[number]);
  PreferHugePages(result.data, BytesOf(result));
  return result;
}

std::optional<Failure> RunWhole(const KernelState& state, const XLA_FFI_CallFrame& frame,
                                Executor& executor, int64_t threads) {
  BufferList buffers(static_cast<size_t>(frame.args.size + frame.rets.size));
  for (int64_t i = 0; i < frame.args.size; ++i) buffers.Add(Operand(frame, i).data);
  for (int64_t i = 0; i < frame.rets.size; ++i) buffers.Add(Result(frame, i).data);
  return RunKernel(*state.slot, executor, threads, buffers.data());
}

// `dims` says how far apart rows lie: XLA counts a byte for each integer of less, of which there are
// several in one.
std::optional<Failure> RunRows(const KernelState& state, const XLA_FFI_CallFrame& frame,
                               Executor& executor, int64_t threads) {
  constexpr int64_t kSizes = 3;  // in front of what there is to know of buffers
  const std::vector<int64_t>& dims = state.dims;
  const int64_t known = static_cast<int64_t>(dims.size()) - kSizes;
  const int64_t folds = known < 0 ? 0 : dims[2];
  const int64_t count = known - folds;  // of kernels
  const int64_t operands = frame.args.size;
  const int64_t unread = frame.rets.size - (count - operands) - folds;
  if (folds < 0 || operands < folds || count - operands < folds || unread < 0 || unread > 1) {
    return Failure{false, "hlo_mlc: a call in blocks of rows has " + std::to_string(known) +
                              " sizes of buffers, which its operands and results do not fit: "
                              "compile the program again with this version of hlo_mlc"};
  }
  const auto result = [&](int64_t i) {
    return static_cast<char*>(Result(frame, i - operands).data);
  };
  RowCall call{dims[0], dims[1], {}, {}};
  for (int64_t i = 0; i < count; ++i) {
    char* const data = i < operands ? static_cast<char*>(Operand(frame, i).data) : result(i);
    call.buffers.push_back({data, dims[kSizes + i]});
  }
  for (int64_t k = 0; k < folds; ++k) {
    call.folds.push_back({static_cast<size_t>(operands - folds + k),
                          static_cast<size_t>(count - folds + k), result(count + k),
                          dims[kSizes + count + k]});
  }
  return RunInBlocks(state.blocks, call, executor, threads);
}

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
  ffi::ThreadPool pool =
      *ffi::CtxDecoding<ffi::ThreadPool>::Decode(frame->api, frame->ctx, diagnostic);
  XlaExecutor executor(pool);
  const int64_t threads = pool.num_threads();
  const std::optional<Failure> failure = (*state)->slot != nullptr
                                             ? RunWhole(**state, *frame, executor, threads)
                                             : RunRows(**state, *frame, executor, threads);
  if (!failure) return nullptr;
  return ffi::internal::CreateError(
      frame->api, ffi::Error(failure->is_of_memory ? ffi::ErrorCode::kResourceExhausted
                                                   : ffi::ErrorCode::kInternal,
                             failure->text));
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

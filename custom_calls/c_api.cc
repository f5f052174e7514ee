// The C functions of mlc_abi.h.

#include <algorithm>
#include <cstdint>
#include <memory>
#include <new>
#include <string>

#include "code_memory.h"
#include "float_mode.h"
#include "mlc_abi.h"
#include "scratch_pool.h"
#include "thread_team.h"
#include "trace.h"
#include "variant_table.h"
#include "worker_pool.h"

using mlc::Slot;
using mlc::VariantTable;

namespace {

constexpr int kDone = 1;
constexpr int kNo = 0;
constexpr int kNoMemory = -1;

thread_local std::string last_fault;  // of what this thread ran

// No exception passes to those who call these functions.
template <typename Function>
int WithinMemory(const Function& function) {
  try {
    return function();
  } catch (const std::bad_alloc&) {
    return kNoMemory;
  }
}

// What mlc_trace_begin gave.
std::shared_ptr<mlc::Trace>& Held(void* trace) {
  return *static_cast<std::shared_ptr<mlc::Trace>*>(trace);
}
const std::shared_ptr<mlc::Trace>& Held(const void* trace) {
  return *static_cast<const std::shared_ptr<mlc::Trace>*>(trace);
}

}  // namespace

int64_t mlc_abi_version(void) { return MLC_ABI_VERSION; }

void* mlc_code_reserve(int64_t bytes) {
  void* pages = nullptr;
  WithinMemory([&] {
    pages = mlc::CodeMemory::Get().Reserve(bytes);
    return kDone;
  });
  return pages;
}

int mlc_code_publish(void* pages, const void* code, int64_t bytes) {
  return mlc::CodeMemory::Get().Publish(pages, code, bytes) ? kDone : kNoMemory;
}

void mlc_code_release(void* pages) { mlc::CodeMemory::Get().Release(pages); }

int mlc_variant_set(const char* id, MlcEntry entry, int64_t scratch_bytes) {
  return WithinMemory([&] {
    VariantTable::Get().Set(id, {entry, scratch_bytes, false});
    return kDone;
  });
}

void* mlc_variant_promise(const char* id, int64_t scratch_bytes) {
  void* promise = nullptr;
  WithinMemory([&] {
    promise = VariantTable::Get().Promised(id, scratch_bytes).release();
    return kDone;
  });
  return promise;
}

void mlc_variant_keep(void* promise, MlcEntry entry, int may_fail) {
  std::unique_ptr<mlc::Promise>(static_cast<mlc::Promise*>(promise))->Keep(entry, may_fail != 0);
}

int mlc_failed_by(MlcContext* context, const char* text) {
  return WithinMemory([&] {
    static_cast<mlc::ThreadTeam*>(context)->FailBy(text);
    return kDone;
  });
}

int mlc_variant_exists(const char* id) {
  return WithinMemory([&] { return VariantTable::Get().Find(id) != nullptr ? kDone : kNo; });
}

int mlc_variant_remove(const char* id) {
  return WithinMemory([&] { return VariantTable::Get().Remove(id) ? kDone : kNo; });
}

int mlc_variant_remove_unused(const char* id) {
  return WithinMemory([&] { return VariantTable::Get().RemoveUnused(id) ? kDone : kNo; });
}

int mlc_variant_describe(const char* id, const char* lines) {
  return WithinMemory([&] {
    const std::shared_ptr<Slot> slot = VariantTable::Get().Find(id);
    if (slot == nullptr) return kNo;
    slot->Describe(lines);
    return kDone;
  });
}

void mlc_profile_enable(int enabled) { mlc::EnableProfiling(enabled != 0); }

int mlc_profile_read(const char* id, int64_t* calls, int64_t* nanoseconds) {
  return WithinMemory([&] {
    const std::shared_ptr<Slot> slot = VariantTable::Get().Find(id);
    if (slot == nullptr) return kNo;
    slot->ReadCalls(calls, nanoseconds);
    return kDone;
  });
}

void mlc_profile_reset(void) { VariantTable::Get().ResetCalls(); }

void* mlc_trace_begin(int64_t spans_per_thread) {
  std::shared_ptr<mlc::Trace>* held = nullptr;
  WithinMemory([&] {
    auto room = std::make_unique<std::shared_ptr<mlc::Trace>>();
    *room = mlc::Trace::Begin(spans_per_thread);
    if (*room != nullptr) held = room.release();
    return kDone;
  });
  return held;
}

void mlc_trace_end(void* trace) { Held(trace)->End(); }

void mlc_trace_release(void* trace) { delete &Held(trace); }

int mlc_trace_lane(const void* trace, int64_t number, MlcLane* lane) {
  if (number < 0 || number >= Held(trace)->lane_count()) return kNo;
  *lane = Held(trace)->lane(number);
  return kDone;
}

const char* mlc_trace_kernel(const void* trace, int64_t number) {
  return Held(trace)->kernel_id(number);
}

int mlc_run(MlcEntry entry, void** buffers, int64_t scratch_bytes, int64_t thread_count) {
  return WithinMemory([&] {
    mlc::ScratchPool::Lease scratch(scratch_bytes);
    if (scratch.failed()) return kNoMemory;
    mlc::WorkerPool& workers = mlc::WorkerPool::Get();
    if (thread_count > 1) workers.EnsureWorkers(thread_count - 1);
    mlc::ThreadTeam team(workers, thread_count);
    mlc::FloatMode mode;
    entry(&team, buffers, scratch.data());
    if (team.fault().text.empty()) return kDone;
    last_fault = team.fault().text;
    return kNo;
  });
}

const char* mlc_fault(void) { return last_fault.c_str(); }

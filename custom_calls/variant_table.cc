#include "variant_table.h"

#include <chrono>

#include "float_mode.h"

namespace mlc {
namespace {

std::atomic<bool> profiling{false};

}  // namespace

void Slot::Set(Variant variant) {
  std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& known : variants_) {
    if (known->entry == variant.entry && known->scratch_bytes == variant.scratch_bytes) {
      current_.store(known.get(), std::memory_order_release);
      return;
    }
  }
  variants_.push_back(std::make_unique<const Variant>(variant));
  current_.store(variants_.back().get(), std::memory_order_release);
}

void Slot::AddCall(int64_t nanoseconds) {
  calls_.fetch_add(1, std::memory_order_relaxed);
  nanoseconds_.fetch_add(nanoseconds, std::memory_order_relaxed);
}

void Slot::ReadCalls(int64_t* calls, int64_t* nanoseconds) const {
  *calls = calls_.load(std::memory_order_relaxed);
  *nanoseconds = nanoseconds_.load(std::memory_order_relaxed);
}

void Slot::ResetCalls() {
  calls_.store(0, std::memory_order_relaxed);
  nanoseconds_.store(0, std::memory_order_relaxed);
}

VariantTable& VariantTable::Get() {
  static VariantTable& table = *new VariantTable;
  return table;
}

void VariantTable::Set(std::string_view id, Variant variant) {
  std::lock_guard<std::mutex> lock(mutex_);
  std::shared_ptr<Slot>& slot = slots_[std::string(id)];
  if (slot == nullptr) {
    slot = std::make_shared<Slot>(variant);
  } else {
    slot->Set(variant);
  }
}

bool VariantTable::Remove(std::string_view id) {
  std::lock_guard<std::mutex> lock(mutex_);
  return slots_.erase(std::string(id)) > 0;
}

std::shared_ptr<Slot> VariantTable::Find(std::string_view id) const {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = slots_.find(std::string(id));
  return found == slots_.end() ? nullptr : found->second;
}

void VariantTable::ResetCalls() {
  std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& [id, slot] : slots_) slot->ResetCalls();
}

bool RunVariant(Slot& slot, MlcContext& context, void** buffers, const int64_t* dims) {
  using Clock = std::chrono::steady_clock;
  const Variant& variant = slot.current();
  ScratchPool::Lease scratch(slot.scratch(), variant.scratch_bytes);
  if (scratch.failed()) return false;
  const bool timed = profiling.load(std::memory_order_relaxed);
  const Clock::time_point start = timed ? Clock::now() : Clock::time_point();
  {
    FloatMode mode;
    variant.entry(&context, buffers, dims, scratch.data());
  }
  if (timed) {
    slot.AddCall(
        std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - start).count());
  }
  return true;
}

void EnableProfiling(bool enabled) { profiling.store(enabled, std::memory_order_relaxed); }

}  // namespace mlc

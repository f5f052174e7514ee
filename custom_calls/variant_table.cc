#include "variant_table.h"

#include <algorithm>
#include <chrono>

#include "float_mode.h"

namespace mlc {
namespace {

std::atomic<bool> profiling{false};

}  // namespace

void Slot::Set(Variant variant) {
  std::lock_guard<std::mutex> lock(mutex_);
  const Variant* known = Known(variant);
  ScratchPool& pool = ScratchPool::Get();
  pool.Expect(variant.scratch_bytes);
  const Variant* replaced = current_.exchange(known, std::memory_order_acq_rel);
  if (replaced != nullptr) pool.Forget(replaced->scratch_bytes);
}

const Variant* Slot::Known(Variant variant) {
  for (const auto& known : variants_) {
    if (known->entry == variant.entry && known->scratch_bytes == variant.scratch_bytes) {
      return known.get();
    }
  }
  variants_.push_back(std::make_unique<const Variant>(variant));
  return variants_.back().get();
}

void Slot::Describe(std::string_view lines) {
  std::lock_guard<std::mutex> lock(mutex_);
  lines_ = lines;
}

std::string Slot::Located(const Fault& fault) const {
  std::lock_guard<std::mutex> lock(mutex_);
  std::string_view any, found;
  for (std::string_view rest = lines_; !rest.empty();) {
    const std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(line.size() + 1, rest.size()));
    const size_t tab = std::min(line.find('\t'), line.size());
    const std::string_view name = line.substr(0, tab);
    const std::string_view where = line.substr(std::min(tab + 1, line.size()));
    if (name.empty()) any = where;
    if (!name.empty() && name == fault.computed) found = where;
  }
  if (found.empty()) found = any;
  std::string text = fault.text;
  if (!found.empty()) text.append("\n  at ").append(found);
  return text;
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
    slot = std::make_shared<Slot>(id, variant);
  } else {
    slot->Set(variant);
  }
}

bool VariantTable::Remove(std::string_view id) {
  std::lock_guard<std::mutex> lock(mutex_);
  return slots_.erase(std::string(id)) > 0;
}

bool VariantTable::RemoveUnused(std::string_view id) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = slots_.find(std::string(id));
  if (found == slots_.end()) return true;
  // Others are added under the lock only, so nobody can come to hold it meanwhile.
  if (found->second.use_count() > 1) return false;
  slots_.erase(found);
  return true;
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
  ScratchPool::Lease scratch(variant.scratch_bytes);
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

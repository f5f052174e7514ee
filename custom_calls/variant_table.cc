#include "variant_table.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "float_mode.h"

namespace mlc {
namespace {

std::atomic<bool> profiling{false};

}  // namespace

Slot::~Slot() {
  const Variant* const last = current_.load(std::memory_order_acquire);
  if (last != nullptr) ScratchPool::Get().Forget(last->scratch_bytes);
}

void Slot::Set(Variant variant) {
  std::lock_guard<std::mutex> lock(mutex_);
  auto known = std::find_if(variants_.begin(), variants_.end(), [&](const Variant& one) {
    return one.entry == variant.entry && one.scratch_bytes == variant.scratch_bytes;
  });
  if (known == variants_.end()) known = variants_.insert(known, variant);
  ScratchPool::Get().Expect(variant.scratch_bytes);
  SetTo(*known);
}

void Slot::SetTo(const Variant& known) {
  const Variant* const replaced = current_.exchange(&known, std::memory_order_acq_rel);
  if (replaced != nullptr) ScratchPool::Get().Forget(replaced->scratch_bytes);
  is_set_.notify_all();
}

const Variant& Slot::Awaited() const {
  std::unique_lock<std::mutex> lock(mutex_);
  const Variant* variant = nullptr;
  is_set_.wait(lock, [&] { return (variant = current_.load(std::memory_order_acquire)); });
  return *variant;
}

Promise::Promise(std::shared_ptr<Slot> slot, int64_t scratch_bytes)
    : slot_(std::move(slot)), room_{{nullptr, scratch_bytes, true}} {
  ScratchPool::Get().Expect(scratch_bytes);
}

void Promise::Keep(MlcEntry entry, bool may_fail) noexcept {
  room_.front().entry = entry;
  room_.front().may_fail = may_fail || entry == nullptr;
  const Variant& kept = room_.front();
  std::lock_guard<std::mutex> lock(slot_->mutex_);
  slot_->variants_.splice(slot_->variants_.end(), room_);
  slot_->SetTo(kept);
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
  const auto found = slots_.find(std::string(id));
  if (found != slots_.end()) return found->second->Set(variant);
  const auto slot = std::make_shared<Slot>(id);
  slot->Set(variant);
  slots_.emplace(id, slot);
}

std::unique_ptr<Promise> VariantTable::Promised(std::string_view id, int64_t scratch_bytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = slots_.find(std::string(id));
  const auto slot = found != slots_.end() ? found->second : std::make_shared<Slot>(id);
  auto promise = std::make_unique<Promise>(slot, scratch_bytes);
  // Last: nobody is to find a slot that never gets any code.
  if (found == slots_.end()) slots_.emplace(id, slot);
  return promise;
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

bool RunVariant(Slot& slot, ThreadTeam& team, void** buffers) {
  using Clock = std::chrono::steady_clock;
  const Variant& variant = slot.current();
  ScratchPool::Lease scratch(variant.scratch_bytes);
  if (scratch.failed()) return false;
  if (variant.may_fail) {
    team.FailBy("hlo_mlc: there is no machine code of kernel '" + slot.id() +
                "', and interpreting it came to no end");
  }
  if (variant.entry == nullptr) return true;
  const bool timed = profiling.load(std::memory_order_relaxed);
  const Clock::time_point start = timed ? Clock::now() : Clock::time_point();
  {
    FloatMode mode;
    variant.entry(&team, buffers, scratch.data());
  }
  if (timed) {
    slot.AddCall(
        std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - start).count());
  }
  return true;
}

void EnableProfiling(bool enabled) { profiling.store(enabled, std::memory_order_relaxed); }

}  // namespace mlc

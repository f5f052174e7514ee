// Which code runs for which logical id.
#ifndef HLO_MLC_VARIANT_TABLE_H_
#define HLO_MLC_VARIANT_TABLE_H_

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>

#include "checked_run.h"
#include "mlc_abi.h"
#include "scratch_pool.h"
#include "thread_team.h"

namespace mlc {

// One piece of code that computes what an id stands for.
struct Variant {
  MlcEntry entry;
  int64_t scratch_bytes;
  bool may_fail;
};

// What an id leads to. Executables hold on to their slots, so the code behind an id can be
// replaced under programs that are loaded or even running: each execution reads the current
// variant once. Where code is promised and there is none yet, executions wait for it.
class Slot {
 public:
  explicit Slot(std::string_view id) : id_(id) {}
  ~Slot();
  Slot(const Slot&) = delete;
  Slot& operator=(const Slot&) = delete;

  const std::string& id() const { return id_; }
  void Set(Variant variant);
  const Variant& current() const {
    const Variant* const variant = current_.load(std::memory_order_acquire);
    return variant != nullptr ? *variant : Awaited();
  }

  // The lines of the user's program that the code stands for (mlc_variant_describe).
  void Describe(std::string_view lines);
  // A fault in words, with the line that it belongs to.
  std::string Located(const Fault& fault) const;

  void AddCall(int64_t nanoseconds);
  void ReadCalls(int64_t* calls, int64_t* nanoseconds) const;
  void ResetCalls();

 private:
  friend class Promise;

  const Variant& Awaited() const;
  void SetTo(const Variant& known);

  const std::string id_;
  std::atomic<const Variant*> current_{nullptr};
  mutable std::mutex mutex_;
  mutable std::condition_variable is_set_;
  std::string lines_;
  // Replaced variants stay: an execution may be about to read one. They are small.
  std::list<Variant> variants_;
  std::atomic<int64_t> calls_{0};
  std::atomic<int64_t> nanoseconds_{0};
};

// Code that a slot will get, whatever happens: keeping a promise takes no memory.
class Promise {
 public:
  Promise(std::shared_ptr<Slot> slot, int64_t scratch_bytes);
  void Keep(MlcEntry entry, bool may_fail) noexcept;

 private:
  const std::shared_ptr<Slot> slot_;  // also when the table forgets it
  std::list<Variant> room_;
};

class VariantTable {
 public:
  // The table of this process. Never destroyed, because XLA's threads outlive static objects.
  static VariantTable& Get();

  void Set(std::string_view id, Variant variant);
  // For a kernel that programs may call before there is code.
  std::unique_ptr<Promise> Promised(std::string_view id, int64_t scratch_bytes);
  bool Remove(std::string_view id);
  // Forgets `id` unless an executable holds on to its slot; says whether it is gone.
  bool RemoveUnused(std::string_view id);
  std::shared_ptr<Slot> Find(std::string_view id) const;
  void ResetCalls();

 private:
  mutable std::mutex mutex_;
  std::unordered_map<std::string, std::shared_ptr<Slot>> slots_;
};

// Runs `slot`'s current code with scratch from the process's pool, in the kernels' floating-point
// mode, counting the call while profiling is on. Returns false when there was no memory.
bool RunVariant(Slot& slot, ThreadTeam& team, void** buffers);

void EnableProfiling(bool enabled);

}  // namespace mlc

#endif  // HLO_MLC_VARIANT_TABLE_H_

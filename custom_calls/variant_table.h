// Which code runs for which logical id.
#ifndef HLO_MLC_VARIANT_TABLE_H_
#define HLO_MLC_VARIANT_TABLE_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "checked_run.h"
#include "mlc_abi.h"
#include "scratch_pool.h"

namespace mlc {

// One piece of code that computes what an id stands for.
struct Variant {
  MlcEntry entry;
  int64_t scratch_bytes;
};

// What an id leads to. Executables hold on to their slots, so the code behind an id can be
// replaced under programs that are loaded or even running: each execution reads the current
// variant once.
class Slot {
 public:
  Slot(std::string_view id, Variant first) : id_(id) { Set(first); }
  ~Slot() { ScratchPool::Get().Forget(current().scratch_bytes); }
  Slot(const Slot&) = delete;
  Slot& operator=(const Slot&) = delete;

  const std::string& id() const { return id_; }
  void Set(Variant variant);
  const Variant& current() const { return *current_.load(std::memory_order_acquire); }

  // The lines of the user's program that the code stands for (mlc_variant_describe).
  void Describe(std::string_view lines);
  // A fault in words, with the line that it belongs to.
  std::string Located(const Fault& fault) const;

  void AddCall(int64_t nanoseconds);
  void ReadCalls(int64_t* calls, int64_t* nanoseconds) const;
  void ResetCalls();

 private:
  const Variant* Known(Variant variant);

  const std::string id_;
  std::atomic<const Variant*> current_{nullptr};
  mutable std::mutex mutex_;
  std::string lines_;
  // Replaced variants stay: an execution may be about to read one. They are 16 bytes each.
  std::vector<std::unique_ptr<const Variant>> variants_;
  std::atomic<int64_t> calls_{0};
  std::atomic<int64_t> nanoseconds_{0};
};

class VariantTable {
 public:
  // The table of this process. Never destroyed, because XLA's threads outlive static objects.
  static VariantTable& Get();

  void Set(std::string_view id, Variant variant);
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
bool RunVariant(Slot& slot, MlcContext& context, void** buffers, const int64_t* dims);

void EnableProfiling(bool enabled);

}  // namespace mlc

#endif  // HLO_MLC_VARIANT_TABLE_H_

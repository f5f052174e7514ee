#include "placement.h"

#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace mlc {
namespace {

constexpr uint64_t kShortestSlice = 100'000;  // nanoseconds

// Linux calls it sched_attr; not every C library has it.
struct SchedulingAttributes {
  uint32_t size;
  uint32_t policy;
  uint64_t flags;
  int32_t nice;
  uint32_t priority;
  uint64_t runtime;  // nanoseconds: the time slice of ordinary threads
  uint64_t deadline;
  uint64_t period;
};

}  // namespace

std::optional<int> Placement::Take() {
  const int cpu = sched_getcpu();
  if (!HasBit(cpu)) return cpu;
  const uint64_t before = taken_[cpu / kBits].fetch_or(Bit(cpu), std::memory_order_relaxed);
  if ((before & Bit(cpu)) != 0) return std::nullopt;
  return cpu;
}

std::optional<int> Placement::TakeAgain(std::optional<int> before) {
  if (before) {
    if (sched_getcpu() == *before) return before;
    Give(*before);
  }
  return Take();
}

void Placement::Give(int cpu) {
  if (HasBit(cpu)) taken_[cpu / kBits].fetch_and(~Bit(cpu), std::memory_order_relaxed);
}

bool Placement::Leave() const {
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return false;
  cpu_set_t free = allowed;
  for (size_t cpu = 0; cpu < kWords * kBits; ++cpu) {
    const uint64_t word = taken_[cpu / kBits].load(std::memory_order_relaxed);
    if (word >> (cpu % kBits) & 1) CPU_CLR(cpu, &free);
  }
  // A thread that may no longer run where it is moves at once.
  if (CPU_COUNT(&free) == 0 || sched_setaffinity(0, sizeof free, &free) != 0) return false;
  sched_setaffinity(0, sizeof allowed, &allowed);
  return true;
}

void ShortenTimeSlice() {
  SchedulingAttributes attributes{};
  if (syscall(SYS_sched_getattr, 0, &attributes, sizeof attributes, 0) != 0) return;
  if (attributes.policy != SCHED_OTHER) return;
  attributes.size = sizeof attributes;
  attributes.runtime = kShortestSlice;
  syscall(SYS_sched_setattr, 0, &attributes, 0);  // where it is not allowed, all stays as it is
}

}  // namespace mlc

// When kernels and their tasks ran, and on which threads, while somebody wants to know.
#ifndef HLO_MLC_TRACE_H_
#define HLO_MLC_TRACE_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "mlc_abi.h"

namespace mlc {

// What is recorded between Begin and End of all kernels inside XLA programs. Each thread writes to a
// lane of its own, of a fixed size: what finds no room there is counted. There is one at a time.
class Trace {
 public:
  // Null while another one is being recorded.
  static std::shared_ptr<Trace> Begin(int64_t spans_per_thread);
  // From now on no execution begins to report to it; those that do may still add to it.
  void End();
  // The one that is being recorded: while there is none, that costs one relaxed load.
  static std::shared_ptr<Trace> Current();

  // The number of a kernel in this trace.
  int64_t Number(std::string_view kernel_id);
  // Adds to the lane of the calling thread. Does not throw: tasks are called by generated code.
  void Add(const MlcSpan& span) noexcept;

  // What is there by now; numbers count from 0.
  int64_t lane_count() const;
  MlcLane lane(int64_t number) const;
  const char* kernel_id(int64_t number) const;  // null for none

 private:
  struct Lane {
    explicit Lane(int64_t capacity);

    const int64_t thread;
    const std::unique_ptr<MlcSpan[]> spans;
    std::atomic<int64_t> count{0};
    std::atomic<int64_t> lost{0};
  };

  explicit Trace(int64_t spans_per_thread);
  Lane* OwnLane() noexcept;

  const int64_t serial_;  // of this process: addresses are used again
  const int64_t capacity_;
  mutable std::mutex mutex_;
  std::vector<std::unique_ptr<Lane>> lanes_;
  std::vector<std::unique_ptr<const std::string>> kernels_;  // who reads one keeps no lock
};

// What one execution of a kernel reports to: the trace that is being recorded as it begins, if any.
class Tracer {
 public:
  Tracer() = default;
  explicit Tracer(std::string_view kernel_id) : trace_(Trace::Current()) {
    if (trace_ != nullptr) kernel_ = trace_->Number(kernel_id);
  }

  // What was called; `task` is MLC_WHOLE_KERNEL for the execution itself.
  template <typename Function>
  void Run(int64_t task, const Function& function) const {
    if (trace_ == nullptr) return function();
    const int64_t begin = Now();
    function();
    trace_->Add({begin, Now(), kernel_, task});
  }

 private:
  static int64_t Now();  // nanoseconds

  std::shared_ptr<Trace> trace_;
  int64_t kernel_ = 0;
};

}  // namespace mlc

#endif  // HLO_MLC_TRACE_H_

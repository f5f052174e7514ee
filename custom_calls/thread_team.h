// parallel_for: the caller and whoever comes to help, over any source of threads.
#ifndef HLO_MLC_THREAD_TEAM_H_
#define HLO_MLC_THREAD_TEAM_H_

#include <atomic>
#include <cstdint>
#include <string_view>

#include "checked_run.h"
#include "mlc_abi.h"
#include "trace.h"

namespace mlc {

// Work that a pool runs once, at any later time and on any thread.
class Job {
 public:
  virtual void Run() = 0;

 protected:
  ~Job() = default;
};

// A source of threads: XLA's pool inside XLA programs, our own elsewhere.
class Executor {
 public:
  // Takes over the job. Must be callable from several threads at once.
  virtual void Schedule(Job* job) = 0;

 protected:
  ~Executor() = default;
};

class Crew;

// The context handed to one execution of a kernel; lives on the stack of that execution.
class ThreadTeam : public MlcContext {
 public:
  ThreadTeam(Executor& executor, int64_t thread_count, const Tracer& tracer = {});
  ~ThreadTeam();
  ThreadTeam(const ThreadTeam&) = delete;
  ThreadTeam& operator=(const ThreadTeam&) = delete;

  // What the kernel failed by, if it has checks or may fail.
  const Fault& fault() const { return fault_; }
  void FailBy(std::string_view text) { fault_.text = text; }

 private:
  static void RunChecked(MlcContext* context, const MlcCheckedKernel* kernel, void** buffers);
  static void ParallelFor(MlcContext* context, MlcTask body, void* closure, int64_t count);

  Executor& executor_;
  const Tracer tracer_;
  std::atomic<Crew*> resting_{nullptr};  // those who did the last parallel_for
  Fault fault_;
};

}  // namespace mlc

#endif  // HLO_MLC_THREAD_TEAM_H_

// Threads for kernels that run outside XLA: tuning, measuring, tests.
#ifndef HLO_MLC_WORKER_POOL_H_
#define HLO_MLC_WORKER_POOL_H_

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>

#include "thread_team.h"

namespace mlc {

// Threads that wait for jobs, started as they are first needed and never ended. Like XLA's, an
// idle worker looks for work for a while before it sleeps, so that what is measured here says
// something about the time inside an XLA program.
class WorkerPool final : public Executor {
 public:
  // The pool of this process; a forked child, which has none of its parent's threads, gets a new
  // one.
  static WorkerPool& Get();

  // Sees to it that `count` workers exist; fewer if the system refuses more threads.
  void EnsureWorkers(int64_t count);

  void Schedule(Job* job) override;

 private:
  void Serve();
  Job* Next();
  Job* Pop();  // the mutex is held and there is a job

  std::mutex mutex_;
  std::condition_variable job_added_;
  std::deque<Job*> jobs_;
  std::atomic<int64_t> pending_{0};
  int64_t workers_ = 0;
};

}  // namespace mlc

#endif  // HLO_MLC_WORKER_POOL_H_

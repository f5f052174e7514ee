#include "thread_team.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <new>

#include "float_mode.h"
#include "spin.h"

namespace mlc {
namespace {

// Long enough for a helper that is already running to finish a short task; a thread that sleeps
// costs 20 to 40 us to wake, so giving up earlier would cost more than it saves.
constexpr int kSpinsBeforeSleep = 2000;

// How many others each participant invites. With more than one, everybody is there after a number
// of steps that grows with the logarithm of the threads, and none of them makes many wake-up calls.
constexpr int kInvitations = 2;

// One parallel_for in progress. Shared by the caller and the helpers it called, because a helper
// may start long after the caller has left; such a one finds no task to claim, and touches neither
// body, closure nor executor.
class Region final : public Job {
 public:
  Region(Executor& executor, MlcTask body, void* closure, int64_t count, int64_t helpers)
      : executor_(executor), body_(body), closure_(closure), count_(count), uninvited_(helpers) {}

  // A helper's part.
  void Run() override {
    {
      FloatMode mode;
      Work();
    }
    Release();
  }

  // The caller's part: works, waits for the tasks that helpers have claimed, and leaves.
  void Join() {
    Work();
    Wait();
    Release();
  }

 private:
  void Work() {
    int64_t finished = 0;
    for (;;) {
      const int64_t task = next_.fetch_add(1, std::memory_order_relaxed);
      if (task >= count_) break;
      // Only now: an unfinished task keeps the caller, and with it the executor, in place.
      if (finished == 0) Invite();
      body_(closure_, task);
      ++finished;
    }
    if (finished == 0) return;
    if (done_.fetch_add(finished, std::memory_order_acq_rel) + finished == count_) {
      // Taking the lock orders this notification after the caller's test of its predicate.
      std::lock_guard<std::mutex> lock(mutex_);
      last_done_.notify_one();
    }
  }

  void Invite() {
    for (int i = 0; i < kInvitations; ++i) {
      if (uninvited_.load(std::memory_order_relaxed) <= 0) return;
      if (uninvited_.fetch_sub(1, std::memory_order_relaxed) <= 0) return;
      owners_.fetch_add(1, std::memory_order_relaxed);
      executor_.Schedule(this);
    }
  }

  void Wait() {
    for (int spin = 0; spin < kSpinsBeforeSleep; ++spin) {
      if (Finished()) return;
      SpinPause();
    }
    std::unique_lock<std::mutex> lock(mutex_);
    last_done_.wait(lock, [this] { return Finished(); });
  }

  bool Finished() const { return done_.load(std::memory_order_acquire) == count_; }

  void Release() {
    if (owners_.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
  }

  Executor& executor_;
  const MlcTask body_;
  void* const closure_;
  const int64_t count_;
  std::atomic<int64_t> uninvited_;
  std::atomic<int64_t> owners_{1};
  alignas(64) std::atomic<int64_t> next_{0};  // on a line of its own: every claim writes it
  alignas(64) std::atomic<int64_t> done_{0};  // on another: the waiting caller polls it
  std::mutex mutex_;
  std::condition_variable last_done_;
};

}  // namespace

ThreadTeam::ThreadTeam(Executor& executor, int64_t thread_count)
    : MlcContext{&ThreadTeam::ParallelFor, std::max<int64_t>(thread_count, 1)},
      executor_(executor) {}

void ThreadTeam::ParallelFor(MlcContext* context, MlcTask body, void* closure, int64_t count) {
  const int64_t helpers = std::min(count, context->thread_count) - 1;
  Executor& executor = static_cast<ThreadTeam*>(context)->executor_;
  Region* region =
      helpers > 0 ? new (std::nothrow) Region(executor, body, closure, count, helpers) : nullptr;
  if (region == nullptr) {  // one task, one thread, or no memory to share the work
    for (int64_t task = 0; task < count; ++task) body(closure, task);
    return;
  }
  region->Join();
}

}  // namespace mlc

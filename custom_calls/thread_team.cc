#include "thread_team.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <new>
#include <utility>

#include "float_mode.h"
#include "placement.h"
#include "spin.h"

namespace mlc {
namespace {

// Long enough for a helper that is already running to finish a short task; a thread that sleeps
// costs 20 to 40 us to wake, so giving up earlier would cost more than it saves.
constexpr int kSpinsBeforeSleep = 2000;

// How many others each participant invites. With more than one, everybody is there after a number
// of steps that grows with the logarithm of the threads, and none of them makes many wake-up calls.
constexpr int kInvitations = 2;

// Shares of the tasks that participants begin with; more participants have some in common.
constexpr int64_t kMostShares = 16;

// One parallel_for in progress. Each participant begins with a share of its own and goes on with
// what is left of the others': when a kernel runs again, and in the next one of the same extent, a
// thread meets the data that it had before, which its cache may still hold (layernorm, softmax and
// gelu of 4 MB ran 1.05 to 1.1 times as fast as with one queue).
//
// Shared by the caller and the helpers it called, because a helper may start long after the caller
// has left; such a one finds no task to claim, and touches neither body, closure nor executor.
class Region final : public Job {
 public:
  Region(Executor& executor, const Tracer& tracer, MlcTask body, void* closure, int64_t count,
         int64_t helpers)
      : executor_(executor),
        tracer_(tracer),
        body_(body),
        closure_(closure),
        count_(count),
        share_count_(std::min(helpers + 1, kMostShares)),
        uninvited_(helpers) {
    for (int64_t share = 0; share < share_count_; ++share) {
      shares_[share].next.store(Begin(share), std::memory_order_relaxed);
    }
  }

  // A helper's part.
  void Run() override {
    static thread_local bool is_new = true;
    if (std::exchange(is_new, false)) ShortenTimeSlice();
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
  struct alignas(64) Share {  // on a line of its own: every claim writes it
    std::atomic<int64_t> next;
  };

  int64_t Begin(int64_t share) const {
    return count_ / share_count_ * share + std::min(share, count_ % share_count_);
  }

  void Work() {
    if (!placement_.Take() && !AllClaimed() && placement_.Leave()) placement_.Take();
    const int64_t first = arrived_.fetch_add(1, std::memory_order_relaxed) % share_count_;
    int64_t finished = 0;
    for (int64_t n = first; n < first + share_count_; ++n) {
      finished += WorkOn(n % share_count_, finished == 0);
    }
    if (finished == 0) return;
    if (done_.fetch_add(finished, std::memory_order_acq_rel) + finished == count_) {
      // Taking the lock orders this notification after the caller's test of its predicate.
      std::lock_guard<std::mutex> lock(mutex_);
      last_done_.notify_one();
    }
  }

  bool AllClaimed() const {
    for (int64_t share = 0; share < share_count_; ++share) {
      if (shares_[share].next.load(std::memory_order_relaxed) < Begin(share + 1)) return false;
    }
    return true;
  }

  // Does what is left of a share, and says how many tasks that were.
  int64_t WorkOn(int64_t share, bool invite) {
    std::atomic<int64_t>& next = shares_[share].next;
    const int64_t end = Begin(share + 1);
    int64_t finished = 0;
    for (;;) {
      const int64_t task = next.fetch_add(1, std::memory_order_relaxed);
      if (task >= end) return finished;
      // Only now: an unfinished task keeps the caller, and with it the executor, in place.
      if (invite && finished == 0) Invite();
      tracer_.Run(task, [&] { body_(closure_, task); });
      ++finished;
    }
  }

  void Invite() {
    for (int i = 0; i < kInvitations; ++i) {
      if (uninvited_.load(std::memory_order_relaxed) <= 0) return;
      if (uninvited_.fetch_sub(1, std::memory_order_relaxed) <= 0) return;
      owners_.fetch_add(1, std::memory_order_relaxed);
      try {
        executor_.Schedule(this);
      } catch (const std::bad_alloc&) {  // nobody comes: who is here does all
        owners_.fetch_sub(1, std::memory_order_relaxed);
        return;
      }
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
  const Tracer tracer_;
  const MlcTask body_;
  void* const closure_;
  const int64_t count_;
  const int64_t share_count_;
  std::atomic<int64_t> uninvited_;
  std::atomic<int64_t> owners_{1};
  std::atomic<int64_t> arrived_{0};
  Share shares_[kMostShares];
  alignas(64) std::atomic<int64_t> done_{0};  // on another: the waiting caller polls it
  Placement placement_;
  std::mutex mutex_;
  std::condition_variable last_done_;
};

}  // namespace

ThreadTeam::ThreadTeam(Executor& executor, int64_t thread_count, const Tracer& tracer)
    : MlcContext{&ThreadTeam::ParallelFor, std::max<int64_t>(thread_count, 1),
                 &ThreadTeam::RunChecked},
      executor_(executor),
      tracer_(tracer) {}

void ThreadTeam::RunChecked(MlcContext* context, const MlcCheckedKernel* kernel, void** buffers,
                            const int64_t* dims) {
  static_cast<ThreadTeam*>(context)->fault_ = mlc::RunChecked(*context, *kernel, buffers, dims);
}

void ThreadTeam::ParallelFor(MlcContext* context, MlcTask body, void* closure, int64_t count) {
  const int64_t helpers = std::min(count, context->thread_count) - 1;
  const auto& team = *static_cast<ThreadTeam*>(context);
  Region* region = helpers > 0 ? new (std::nothrow) Region(team.executor_, team.tracer_, body,
                                                           closure, count, helpers)
                               : nullptr;
  if (region == nullptr) {  // one task, one thread, or no memory to share the work
    for (int64_t task = 0; task < count; ++task) {
      team.tracer_.Run(task, [&] { body(closure, task); });
    }
    return;
  }
  region->Join();
}

}  // namespace mlc

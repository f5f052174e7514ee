#include "thread_team.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <limits>
#include <mutex>
#include <new>
#include <optional>
#include <utility>

#include "float_mode.h"
#include "placement.h"
#include "spin.h"

namespace mlc {
namespace {

// Long enough for a helper that is already running to finish a short task; a thread that sleeps
// costs 20 to 40 us to wake, so giving up earlier would cost more than it saves.
constexpr int kSpinsBeforeSleep = 2000;

// How long a helper waits for the next parallel_for of its kernel, some 50 us: what runs on
// one thread between two of them is shorter where sharing pays (templates/program.py).
constexpr int kSpinsBeforeLeaving = 2000;

// How many others each participant invites. With more than one, everybody is there after a number
// of steps that grows with the logarithm of the threads, and none of them makes many wake-up calls.
constexpr int kInvitations = 2;

// Shares of the tasks that participants begin with; more participants have some in common.
constexpr int kMostShares = 16;

// A share has two halves of a word for its tasks.
constexpr int64_t kMostTasks = std::numeric_limits<uint32_t>::max() / 2;

constexpr uint64_t Range(int64_t next, int64_t end) {
  return static_cast<uint64_t>(end) << 32 | static_cast<uint64_t>(next);
}
constexpr int64_t Next(uint64_t range) { return static_cast<uint32_t>(range); }
constexpr int64_t End(uint64_t range) { return static_cast<int64_t>(range >> 32); }

}  // namespace

// The caller of parallel_for and its helpers, for one parallel_for after the other. A helper stays
// for the next one as long as the kernel runs, which then need not go through the pool: it finds
// the tasks and what to do with them in one line of memory, which takes some 0.2 us to come from
// another core.
//
// Each participant begins with a share of its own and goes on with what is left of the others':
// when a kernel runs again, and in the next parallel_for of the same extent, a thread meets the data
// that it had before, which its cache may still hold (layernorm, softmax and gelu of 4 MB ran 1.05
// to 1.1 times as fast as with one queue).
//
// Owned by the execution and by the helpers that were invited, because these may start long after
// the caller has left; such a one finds no task to claim, and touches neither body, closure nor
// executor: a task that is claimed and not finished keeps the caller, and with it all three, there.
class Crew final : public Job {
 public:
  Crew(Executor& executor, const Tracer& tracer, int64_t thread_count)
      : executor_(executor),
        tracer_(tracer),
        thread_count_(thread_count),
        share_count_(static_cast<int>(std::min<int64_t>(thread_count, kMostShares))) {}

  // The caller's part of one parallel_for, of which there is one at a time: works, and waits for
  // the tasks that helpers have claimed.
  void Do(MlcTask body, void* closure, int64_t count) {
    callers_cpu_ = placement_.TakeAgain(callers_cpu_);
    const int64_t helpers = std::min(count, thread_count_) - 1;
    if (wanted_.load(std::memory_order_relaxed) != helpers) {
      wanted_.store(helpers, std::memory_order_relaxed);
    }
    const int64_t used = std::min<int64_t>(count, share_count_);
    for (int64_t n = used; n-- > 0;) {
      const int64_t begin = count / used * n + std::min(n, count % used);
      const int64_t end = count / used * (n + 1) + std::min(n + 1, count % used);
      shares_[n].body = body;
      shares_[n].closure = closure;
      shares_[n].range.store(Range(begin, end), std::memory_order_release);
    }
    const int64_t before = settled_;
    settled_ += count - Work(0, [](int64_t) {});
    if (settled_ > before) Wait();
  }

  // A helper's part, until nothing is to be expected any more.
  void Run() override {
    static thread_local bool is_new = true;
    if (std::exchange(is_new, false)) ShortenTimeSlice();
    {
      FloatMode mode;
      const std::optional<int> cpu = FindCpu();
      const int place = TakePlace();
      do {
        Work(place, [&](int64_t finished) { Report(finished); });
      } while (cpu && Await(shares_[place]));
      LeavePlace(place);
      if (cpu) placement_.Give(*cpu);  // in a later parallel_for it or another one may be there
    }
    invited_.fetch_sub(1, std::memory_order_relaxed);
    Release();
  }

  // The execution is over.
  void Dismiss() {
    dismissed_.store(true, std::memory_order_release);
    Release();
  }

 private:
  struct alignas(64) Share {  // all that a participant needs, on a line of its own
    std::atomic<uint64_t> range{0};
    MlcTask body = nullptr;
    void* closure = nullptr;
  };

  // A CPU of its own; nothing where there is none, or nothing left that would be worth moving.
  std::optional<int> FindCpu() {
    const std::optional<int> cpu = placement_.Take();
    if (cpu || !AnyLeft() || !placement_.Leave()) return cpu;
    return placement_.Take();
  }

  bool AnyLeft() const {
    return std::any_of(shares_, shares_ + share_count_, HasTask);
  }

  static bool HasTask(const Share& share) {
    const uint64_t range = share.range.load(std::memory_order_relaxed);
    return Next(range) < End(range);
  }

  // The share that a helper begins with: one that no other does, or, where there are no more of
  // these, the caller's.
  int TakePlace() {
    uint32_t taken = places_.load(std::memory_order_relaxed);
    for (;;) {
      int place = 1;
      while (place < share_count_ && (taken >> place & 1) != 0) ++place;
      if (place == share_count_) return 0;
      if (places_.compare_exchange_weak(taken, taken | uint32_t{1} << place)) return place;
    }
  }

  void LeavePlace(int place) { places_.fetch_and(~(uint32_t{1} << place)); }

  // Does what is left of all shares, a participant's own first; `report` is told of those that
  // were finished before anybody's next share is looked at. How many tasks that were in all.
  template <typename Reporter>
  int64_t Work(int own, const Reporter& report) {
    int64_t total = 0;
    for (int n = 0; n < share_count_; ++n) {
      const int64_t finished = WorkOn(shares_[(own + n) % share_count_], total == 0);
      if (finished > 0) report(finished);
      total += finished;
    }
    return total;
  }

  // Does what is left of a share, and says how many tasks that were.
  int64_t WorkOn(Share& share, bool invite) {
    int64_t finished = 0;
    while (HasTask(share)) {
      const uint64_t range = share.range.fetch_add(1, std::memory_order_acquire);
      if (Next(range) >= End(range)) break;
      if (invite && finished == 0) Invite();
      tracer_.Run(Next(range), [&] { share.body(share.closure, Next(range)); });
      ++finished;
    }
    return finished;
  }

  void Invite() {
    for (int i = 0; i < kInvitations; ++i) {
      int64_t invited = invited_.load(std::memory_order_relaxed);
      if (invited >= wanted_.load(std::memory_order_relaxed)) return;
      if (!invited_.compare_exchange_strong(invited, invited + 1)) continue;
      owners_.fetch_add(1, std::memory_order_relaxed);
      try {
        executor_.Schedule(this);
      } catch (const std::bad_alloc&) {  // nobody comes: who is here does all
        invited_.fetch_sub(1, std::memory_order_relaxed);
        owners_.fetch_sub(1, std::memory_order_relaxed);
        return;
      }
    }
  }

  void Report(int64_t finished) {
    done_.fetch_add(finished);
    if (!is_asleep_.load()) return;
    // Taking the lock orders this notification after the caller's test of its predicate.
    std::lock_guard<std::mutex> lock(mutex_);
    some_done_.notify_one();
  }

  void Wait() {
    for (int spin = 0; spin < kSpinsBeforeSleep; ++spin) {
      if (IsSettled()) return;
      SpinPause();
    }
    std::unique_lock<std::mutex> lock(mutex_);
    is_asleep_.store(true);  // before the predicate: who reports afterwards sees it
    some_done_.wait(lock, [this] { return IsSettled(); });
    is_asleep_.store(false);
  }

  bool IsSettled() const { return done_.load() == settled_; }

  // Whether a share has tasks again before it is time to leave.
  bool Await(const Share& share) const {
    for (int spin = 0; spin < kSpinsBeforeLeaving; ++spin) {
      if (dismissed_.load(std::memory_order_acquire)) return false;
      if (HasTask(share)) return true;
      SpinPause();
    }
    return false;
  }

  void Release() {
    if (owners_.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
  }

  // What changes with nobody, or only as helpers come and go.
  Executor& executor_;
  const Tracer tracer_;
  const int64_t thread_count_;
  const int share_count_;
  std::atomic<bool> dismissed_{false};
  std::atomic<int64_t> wanted_{0};   // helpers of this parallel_for
  std::atomic<int64_t> invited_{0};  // those who are here, or will be
  std::atomic<int64_t> owners_{1};
  std::atomic<uint32_t> places_{0};  // shares that helpers begin with, a bit each
  Placement placement_;
  std::optional<int> callers_cpu_;

  Share shares_[kMostShares];

  alignas(64) int64_t settled_ = 0;  // tasks that helpers have claimed so far; the caller's alone
  alignas(64) std::atomic<int64_t> done_{0};  // those that they have finished: the caller polls it
  std::atomic<bool> is_asleep_{false};        // the caller, so that somebody has to wake it
  std::mutex mutex_;
  std::condition_variable some_done_;
};

ThreadTeam::ThreadTeam(Executor& executor, int64_t thread_count, const Tracer& tracer)
    : MlcContext{&ThreadTeam::ParallelFor, std::max<int64_t>(thread_count, 1),
                 &ThreadTeam::RunChecked},
      executor_(executor),
      tracer_(tracer) {}

void ThreadTeam::RunChecked(MlcContext* context, const MlcCheckedKernel* kernel, void** buffers) {
  static_cast<ThreadTeam*>(context)->fault_ = mlc::RunChecked(*context, *kernel, buffers);
}

ThreadTeam::~ThreadTeam() {
  if (Crew* const crew = resting_.load(std::memory_order_acquire)) crew->Dismiss();
}

void ThreadTeam::ParallelFor(MlcContext* context, MlcTask body, void* closure, int64_t count) {
  auto& team = *static_cast<ThreadTeam*>(context);
  if (count > 1 && context->thread_count > 1 && count <= kMostTasks) {
    Crew* crew = team.resting_.exchange(nullptr);  // at work already where one is in another
    if (crew == nullptr) {
      crew = new (std::nothrow) Crew(team.executor_, team.tracer_, context->thread_count);
    }
    if (crew != nullptr) {
      crew->Do(body, closure, count);
      if (Crew* const other = team.resting_.exchange(crew)) other->Dismiss();
      return;
    }
  }
  // One task, one thread, more tasks than shares can count, or no memory to share the work.
  for (int64_t task = 0; task < count; ++task) {
    team.tracer_.Run(task, [&] { body(closure, task); });
  }
}

}  // namespace mlc

// Prints what is wrong with parallel_for, if anything is: kernels of many loops, some in the tasks of
// others, by several callers at once, with helpers that come late or never.
#include "thread_team.h"

#include <chrono>
#include <cstdio>
#include <random>
#include <thread>
#include <vector>

#include "worker_pool.h"

namespace {

constexpr int kKernels = 100;
constexpr int kMostLoops = 20;
constexpr int kMostTasks = 40;

// Hands jobs on to the pool, some of them late, so that the execution may be over by then.
class Tardy final : public mlc::Executor {
 public:
  void Schedule(mlc::Job* job) override {
    if (++count_ % 3 != 0) return mlc::WorkerPool::Get().Schedule(job);
    std::thread([job] {
      std::this_thread::sleep_for(std::chrono::microseconds(300));
      job->Run();
    }).detach();
  }

 private:
  std::atomic<int> count_{0};
};

struct Loop {
  MlcContext* context;
  bool nests;
  std::vector<int> times;
};

void Count(void* loop, int64_t task);

void Run(MlcContext* context, int64_t tasks, bool nests) {
  Loop loop{context, nests, std::vector<int>(static_cast<size_t>(tasks))};
  context->parallel_for(context, Count, &loop, tasks);
  for (const int times : loop.times) {
    if (times != 1) std::printf("a task of %d ran %d times\n", int(tasks), times);
  }
}

void Count(void* closure, int64_t task) {
  Loop& loop = *static_cast<Loop*>(closure);
  ++loop.times[static_cast<size_t>(task)];
  if (loop.nests && task % 3 == 0) Run(loop.context, 7, false);
}

void Call(int64_t threads) {
  static Tardy executor;
  std::mt19937 random(static_cast<unsigned>(threads));
  for (int kernel = 0; kernel < kKernels; ++kernel) {
    mlc::ThreadTeam team(executor, threads);
    for (unsigned loops = random() % kMostLoops; loops > 0; --loops) {
      Run(&team, random() % kMostTasks, random() % 5 == 0);
      // Longer than helpers wait.
      if (random() % 50 == 0) std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
  }
}

}  // namespace

int main() {
  mlc::WorkerPool::Get().EnsureWorkers(5);
  std::vector<std::thread> callers;
  for (const int64_t threads : {2, 5, 20}) callers.emplace_back(Call, threads);
  for (std::thread& caller : callers) caller.join();
  std::this_thread::sleep_for(std::chrono::milliseconds(50));  // until the latest have been there
  return 0;
}

// Prints what is wrong with parallel_for, if anything is: kernels of many loops, some in the tasks of
// others, by several callers at once, with helpers that come late or never; and whether helpers have
// CPUs of their own each time they come.
#include "thread_team.h"

#include <sched.h>

#include <chrono>
#include <cstdio>
#include <random>
#include <thread>
#include <vector>

#include "worker_pool.h"

namespace {

std::atomic<int> moves{0};

}  // namespace

extern "C" int __real_sched_getaffinity(pid_t, size_t, cpu_set_t*);

// Called by who looks for another CPU (the linker's --wrap).
extern "C" int __wrap_sched_getaffinity(pid_t thread, size_t size, cpu_set_t* cpus) {
  ++moves;
  return __real_sched_getaffinity(thread, size, cpus);
}

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

void StayOn(int cpu) {
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(cpu, &one);
  sched_setaffinity(0, sizeof one, &one);
}

// Runs jobs on one CPU.
class OnCpu final : public mlc::Executor {
 public:
  explicit OnCpu(int cpu) : cpu_(cpu) {}

  void Schedule(mlc::Job* job) override {
    std::thread([this, job] {
      StayOn(cpu_);
      job->Run();
    }).detach();
  }

 private:
  const int cpu_;
};

void Sleep(void*, int64_t) { std::this_thread::sleep_for(std::chrono::microseconds(500)); }

// A helper and the caller stay each on a CPU, and one comes late to each loop: nobody is to move.
void CallFrom(int cpu, int helpers_cpu) {
  static OnCpu executor(helpers_cpu);
  StayOn(cpu);
  moves = 0;
  mlc::ThreadTeam team(executor, 2);
  for (int loop = 0; loop < 10; ++loop) {
    team.parallel_for(&team, Sleep, nullptr, 8);
    std::this_thread::sleep_for(std::chrono::milliseconds(2));  // longer than helpers wait
  }
  if (moves > 0) std::printf("with a CPU for each, %d looked for another\n", moves.load());
}

}  // namespace

int main() {
  mlc::WorkerPool::Get().EnsureWorkers(5);
  std::vector<std::thread> callers;
  for (const int64_t threads : {2, 5, 20}) callers.emplace_back(Call, threads);
  for (std::thread& caller : callers) caller.join();
  std::this_thread::sleep_for(std::chrono::milliseconds(50));  // until the latest have been there

  cpu_set_t allowed;
  __real_sched_getaffinity(0, sizeof allowed, &allowed);
  std::vector<int> cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &allowed)) cpus.push_back(cpu);
  }
  if (cpus.size() > 1) CallFrom(cpus[0], cpus[1]);
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  return 0;
}

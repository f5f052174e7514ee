// Prints what is wrong, if anything is; "one CPU" where nothing can be tried.
#include "placement.h"

#include <sched.h>
#include <sys/resource.h>

#include <cstdio>
#include <thread>

namespace {

cpu_set_t Affinity() {
  cpu_set_t set;
  sched_getaffinity(0, sizeof set, &set);
  return set;
}

void RunOn(int cpu) {
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(cpu, &one);
  sched_setaffinity(0, sizeof one, &one);
}

void Expect(bool holds, const char* what) {
  if (!holds) std::printf("%s\n", what);
}

}  // namespace

int main() {
  const cpu_set_t all = Affinity();
  if (CPU_COUNT(&all) < 2) {
    std::printf("one CPU\n");
    return 0;
  }
  mlc::Placement placement;
  const int cpu = sched_getcpu();
  RunOn(cpu);
  Expect(placement.Take() == cpu, "the first thread does not get its CPU");
  std::thread([&] {
    RunOn(cpu);
    Expect(!placement.Take(), "the second thread gets the CPU of the first");
    Expect(!placement.Leave(), "it leaves though it may run nowhere else");
    Expect(sched_getcpu() == cpu, "it is elsewhere");
  }).join();
  std::thread([&] {
    RunOn(cpu);
    sched_setaffinity(0, sizeof all, &all);
    Expect(placement.Leave(), "it does not leave");
    Expect(sched_getcpu() != cpu, "it is where it was");
    const cpu_set_t after = Affinity();
    Expect(CPU_EQUAL(&after, &all), "it may run elsewhere than before");
  }).join();
  std::thread([&] {
    mlc::Placement full;
    for (int n = 0; n < CPU_SETSIZE; ++n) {
      if (!CPU_ISSET(n, &all)) continue;
      RunOn(n);
      Expect(full.Take() == n, "a free CPU counts as taken");
    }
    sched_setaffinity(0, sizeof all, &all);
    Expect(!full.Leave(), "it leaves though every CPU is taken");
  }).join();
  std::thread([&] {
    mlc::Placement again;
    RunOn(cpu);
    const std::optional<int> first = again.Take();
    Expect(again.TakeAgain(first) == cpu, "it does not keep its CPU");
    int other = 0;
    while (other == cpu || !CPU_ISSET(other, &all)) ++other;
    RunOn(other);
    Expect(again.TakeAgain(first) == other, "the CPU where it was moved to is not its own");
    RunOn(cpu);
    Expect(again.Take() == cpu, "the CPU that it left is still taken");
    again.Give(other);
    RunOn(other);
    Expect(again.Take() == other, "a CPU that was given back is still taken");
  }).join();
  std::thread([&] {
    setpriority(PRIO_PROCESS, 0, 3);
    mlc::ShortenTimeSlice();
    Expect(sched_getscheduler(0) == SCHED_OTHER, "the policy has changed");
    Expect(getpriority(PRIO_PROCESS, 0) == 3, "the priority has changed");
  }).join();
  return 0;
}

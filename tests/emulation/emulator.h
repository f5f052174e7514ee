// CUDA C++ kernels on a CPU: every thread of a block is a fiber, blocks run one after the other.
//
// Threads run one at a time until they wait for others, in an order that the caller chooses:
// without a barrier that it needs, a thread meets memory that others have not written yet.  Shared
// memory holds all bits set (NaN) when a block begins.  Threads that wait for different things, or
// for threads that have finished, are an error.

#pragma once
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <numeric>
#include <type_traits>
#include <utility>
#include <vector>

#include <sys/mman.h>

#define MLC_EMULATED 1
#define __global__ static
#define __device__ static
#define __launch_bounds__(count)
// All shared memory of this file, side by side, so that it can be filled.
#define __shared__ static __attribute__((section("mlc_shared")))

extern "C" char __start_mlc_shared[] __attribute__((weak));
extern "C" char __stop_mlc_shared[] __attribute__((weak));

struct Index {
  unsigned x;
};
static Index threadIdx, blockIdx;

namespace emulated {

enum class Waiting { kNot, kBlock, kWarp, kShuffle, kFinished };

struct PendingCopy {
  void* to;
  const void* from;
  size_t bytes;
};

struct Thread {
  void* stack_pointer = nullptr;
  Waiting waiting = Waiting::kNot;
  unsigned operations = 0;  // of its warp so far
  std::vector<PendingCopy> copies;
};

struct Warp {
  unsigned char values[2][32][24];  // what its threads hand to each other, in turns
};

constexpr unsigned kWarp = 32;
constexpr size_t kStackBytes = 64 * 1024;
constexpr unsigned kMostThreads = 1024;
constexpr size_t kPage = 64 * 1024;  // or a multiple of it

static std::vector<Thread> threads;
static std::vector<Warp> warps;
static unsigned current;
static void* scheduler;
static char* stacks;
static void (*body)(void*);
static void* arguments;
static char message[256];
static unsigned char* dynamic_shared;  // what a launch asks for, up to a page without access
static size_t dynamic_shared_bytes;
static const char* fault;  // what a thread did that the machine does not allow

// Saves the registers that a callee must keep, and the stack; goes on with another stack.
extern "C" void mlc_switch(void** save, void* load) __attribute__((visibility("hidden")));
#if defined(__x86_64__)
asm(".text\n.type mlc_switch,@function\nmlc_switch:\n"
    "push %rbp\npush %rbx\npush %r12\npush %r13\npush %r14\npush %r15\n"
    "mov %rsp,(%rdi)\nmov %rsi,%rsp\n"
    "pop %r15\npop %r14\npop %r13\npop %r12\npop %rbx\npop %rbp\nret\n"
    ".size mlc_switch,.-mlc_switch\n");
constexpr int kSaved = 6;
#elif defined(__aarch64__)
asm(".text\n.type mlc_switch,%function\nmlc_switch:\n"
    "sub sp,sp,#160\n"
    "stp x19,x20,[sp]\nstp x21,x22,[sp,#16]\nstp x23,x24,[sp,#32]\nstp x25,x26,[sp,#48]\n"
    "stp x27,x28,[sp,#64]\nstp x29,x30,[sp,#80]\n"
    "stp d8,d9,[sp,#96]\nstp d10,d11,[sp,#112]\nstp d12,d13,[sp,#128]\nstp d14,d15,[sp,#144]\n"
    "mov x9,sp\nstr x9,[x0]\nmov sp,x1\n"
    "ldp x19,x20,[sp]\nldp x21,x22,[sp,#16]\nldp x23,x24,[sp,#32]\nldp x25,x26,[sp,#48]\n"
    "ldp x27,x28,[sp,#64]\nldp x29,x30,[sp,#80]\n"
    "ldp d8,d9,[sp,#96]\nldp d10,d11,[sp,#112]\nldp d12,d13,[sp,#128]\nldp d14,d15,[sp,#144]\n"
    "add sp,sp,#160\nret\n"
    ".size mlc_switch,.-mlc_switch\n");
#else
#error "expected x86-64 or aarch64"
#endif

inline void wait(Waiting what) {
  threads[current].waiting = what;
  mlc_switch(&threads[current].stack_pointer, scheduler);
}

[[noreturn]] static void run_thread() {
  body(arguments);
  wait(Waiting::kFinished);
  __builtin_unreachable();
}

inline void start(unsigned thread) {
  auto top = reinterpret_cast<uintptr_t>(stacks + (thread + 1) * kStackBytes) & ~uintptr_t{63};
#if defined(__x86_64__)
  auto** stack = reinterpret_cast<void**>(top) - 1;
  *--stack = reinterpret_cast<void*>(run_thread);
  stack -= kSaved;
#else
  auto** stack = reinterpret_cast<void**>(top - 160);
  stack[11] = reinterpret_cast<void*>(run_thread);
#endif
  threads[thread].stack_pointer = stack;
}

inline void resume(unsigned thread) {
  current = thread;
  threadIdx.x = thread;
  threads[thread].waiting = Waiting::kNot;
  mlc_switch(&scheduler, threads[thread].stack_pointer);
}

inline bool all_wait(unsigned first, unsigned last, Waiting what, bool or_finished) {
  for (unsigned t = first; t < last; ++t) {
    const Waiting has = threads[t].waiting;
    if (has != what && !(or_finished && has == Waiting::kFinished)) return false;
  }
  return true;
}

inline void release(unsigned first, unsigned last) {
  for (unsigned t = first; t < last; ++t) {
    if (threads[t].waiting != Waiting::kFinished) threads[t].waiting = Waiting::kNot;
  }
}

// The order in which threads get their turns: upwards, downwards, or shuffled.
inline unsigned turn(unsigned number, unsigned count, unsigned order, unsigned salt) {
  if (order == 0) return number;
  if (order == 1) return count - 1 - number;
  unsigned step = 2 * (salt * order % count) + 1;
  while (std::gcd(step, count) != 1) step += 2;
  return (number * step + salt) % count;
}

// Not with memset, of which a sanitizer would say that it writes between arrays.
__attribute__((no_sanitize_address)) inline void poison_shared_memory() {
  for (char* byte = __start_mlc_shared; byte < __stop_mlc_shared; ++byte) {
    *const_cast<volatile char*>(byte) = static_cast<char>(0xff);
  }
  memset(dynamic_shared, 0xff, dynamic_shared_bytes);
}

inline bool run_block(unsigned count, unsigned order) {
  poison_shared_memory();
  threads.assign(count, Thread{});
  warps.resize((count + kWarp - 1) / kWarp);
  for (unsigned t = 0; t < count; ++t) start(t);
  for (unsigned round = 0;; ++round) {
    for (unsigned n = 0; n < count; ++n) {
      const unsigned t = turn(n, count, order, round + blockIdx.x);
      if (threads[t].waiting == Waiting::kNot) resume(t);
    }
    if (all_wait(0, count, Waiting::kFinished, true)) return true;
    bool released = false;
    for (unsigned first = 0; first < count; first += kWarp) {
      const unsigned last = first + kWarp < count ? first + kWarp : count;
      for (const Waiting what : {Waiting::kWarp, Waiting::kShuffle}) {
        if (last - first == kWarp && all_wait(first, last, what, false)) {
          release(first, last);
          released = true;
        }
      }
    }
    if (!released && all_wait(0, count, Waiting::kBlock, true)) {
      release(0, count);
      released = true;
    }
    if (!released) {
      unsigned waiting[5] = {};
      for (const Thread& t : threads) ++waiting[static_cast<int>(t.waiting)];
      snprintf(message, sizeof message,
               "block %u: %u threads wait for their block, %u for their warp, %u to exchange "
               "values, %u have finished", blockIdx.x, waiting[1], waiting[2], waiting[3],
               waiting[4]);
      return false;
    }
  }
}

template <class... Parameters>
struct Call {
  void (*function)(Parameters...);
  void** arguments;
  template <size_t... n>
  void run(std::index_sequence<n...>) {
    function(*static_cast<std::remove_const_t<Parameters>*>(arguments[n])...);
  }
  static void start(void* call) {
    static_cast<Call*>(call)->run(std::index_sequence_for<Parameters...>{});
  }
};

// Shared memory that functions do not declare, for one launch.
struct DynamicShared {
  size_t mapped;
  char* pages;
  explicit DynamicShared(unsigned bytes) : mapped((bytes + 2 * kPage - 1) / kPage * kPage) {
    pages = static_cast<char*>(mmap(nullptr, mapped, PROT_READ | PROT_WRITE,
                                    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    mprotect(pages + mapped - kPage, kPage, PROT_NONE);
    dynamic_shared_bytes = bytes;
    dynamic_shared = reinterpret_cast<unsigned char*>(pages + mapped - kPage - bytes);
  }
  DynamicShared(const DynamicShared&) = delete;
  ~DynamicShared() { munmap(pages, mapped); }
};

// The stacks of a block's threads, for one launch: a process may load many of these libraries, and
// has other uses for its address space.
struct Stacks {
  size_t mapped;
  explicit Stacks(unsigned count) : mapped(count * kStackBytes) {
    stacks = static_cast<char*>(mmap(nullptr, mapped, PROT_READ | PROT_WRITE,
                                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  }
  Stacks(const Stacks&) = delete;
  ~Stacks() { munmap(stacks, mapped); }
};

// What went wrong; null if nothing did.
template <class... Parameters>
const char* launch(void (*function)(Parameters...), unsigned blocks, unsigned count,
                   unsigned shared_bytes, void** values, unsigned order) {
  if (blocks == 0 || count == 0 || count > kMostThreads) return "a launch of an impossible size";
  if (shared_bytes % 16 != 0) return "shared memory of an odd size";
  const DynamicShared shared(shared_bytes);
  const Stacks of_threads(count);
  Call<Parameters...> call{function, values};
  body = Call<Parameters...>::start;
  arguments = &call;
  for (unsigned n = 0; n < blocks; ++n) {
    blockIdx.x = order == 0 ? n : blocks - 1 - n;
    if (!run_block(count, order)) return message;
  }
  return std::exchange(fault, nullptr);
}

}  // namespace emulated

#define EMULATED(space, name)                                                                   \
  extern "C" const char* space##_##name(unsigned blocks, unsigned threads,                      \
                                        unsigned shared_bytes, void** values, unsigned order) { \
    return emulated::launch(&space::name, blocks, threads, shared_bytes, values, order);        \
  }

#include "emulated_device.h"

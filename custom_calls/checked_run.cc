#include "checked_run.h"

#include <setjmp.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <mutex>
#include <new>
#include <string_view>
#include <utility>
#include <vector>

#include "fenced_memory.h"

namespace mlc {
namespace {

// One execution of a kernel with checks.
//
// Leaving a task is a long jump to where the task was called: between the two there are only frames
// of generated code, which have nothing to clean up.
class CheckedRun final : public MlcCheckedContext {
 public:
  // `flip` changes the patterns that results are filled with.
  CheckedRun(MlcContext& outer, const MlcCheckedKernel& kernel, void** buffers, uint64_t flip)
      : MlcCheckedContext{{&ParallelFor, outer.thread_count, nullptr}, &Report},
        outer_(outer),
        kernel_(kernel),
        originals_(buffers),
        flip_(flip) {}

  void Run();

  // Whether an element of a result is what it was filled with: it may be by chance.
  bool LooksUnwritten() const;

  // Finds an element that is what it was filled with in another run with other patterns too.
  void FindUnwritten(const CheckedRun& other);

  void CopyBack() const;

  const Fault& fault() const { return fault_; }
  bool failed() const { return failed_.load(std::memory_order_acquire); }

  // Ends the task that touched a fence; returns if the address is not that of one.
  static void LeaveIfFenced(const void* address);

 private:
  // A task of the kernel with what it needs to come back.
  struct Guarded {
    CheckedRun& run;
    MlcTask body;
    void* closure;
  };

  static void ParallelFor(MlcContext* context, MlcTask body, void* closure, int64_t count);
  static void RunTask(void* closure, int64_t task);
  static void Report(MlcCheckedContext* context, const MlcAccess* access, int64_t number);

  template <typename Body>
  void Protect(const Body& body);

  bool Prepare();
  int64_t Owner(int64_t position) const;
  uint8_t* data(int64_t position) const { return memories_[static_cast<size_t>(position)].data(); }
  uint64_t pattern(int64_t position) const { return kernel_.buffers[position].poison ^ flip_; }
  void SetFault(std::string text, std::string_view computed);
  void DescribeFence(const void* address);
  int64_t buffer_count() const { return kernel_.operand_count + kernel_.result_count; }
  const char* Name(size_t memory) const {
    return memory + 1 == memories_.size() ? "scratch" : kernel_.buffers[memory].name;
  }
  bool is_result(int64_t position) const { return position >= kernel_.operand_count; }

  MlcContext& outer_;
  const MlcCheckedKernel& kernel_;
  void** const originals_;
  const uint64_t flip_;
  std::vector<FencedMemory> memories_;  // the last one is scratch
  std::vector<void*> pointers_;         // what the kernel gets
  std::mutex mutex_;
  std::atomic<bool> failed_{false};
  Fault fault_;
};

// Where a task on this thread comes back to, and whose it is.
struct Landing {
  CheckedRun* run;
  jmp_buf where;
  const void* address;  // in a fence, which was touched
};
thread_local Landing* landing = nullptr;

constexpr uint8_t kScratchPoison = 0xFF;  // NaN in every float type, and an index out of all bounds

void HandleSegv(int signal, siginfo_t* info, void* ucontext);
struct sigaction previous_handler;

// In front of the handlers that are there already, which get all that is not ours. The alternative
// stack is theirs, if there is one, for overflows of the usual one; SA_NODEFER because the handler
// is left by a jump, which does not unblock the signal.
void InstallHandler() {
  static std::once_flag once;
  std::call_once(once, [] {
    struct sigaction ours = {};
    ours.sa_sigaction = &HandleSegv;
    ours.sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK;
    sigemptyset(&ours.sa_mask);
    sigaction(SIGSEGV, &ours, &previous_handler);
  });
}

void HandleSegv(int signal, siginfo_t* info, void* ucontext) {
  CheckedRun::LeaveIfFenced(info->si_addr);
  if (previous_handler.sa_flags & SA_SIGINFO) {
    previous_handler.sa_sigaction(signal, info, ucontext);
  } else if (previous_handler.sa_handler == SIG_DFL || previous_handler.sa_handler == SIG_IGN) {
    sigaction(SIGSEGV, &previous_handler, nullptr);  // and the instruction is tried again
  } else {
    previous_handler.sa_handler(signal);
  }
}

// Calls `visit` with an element type of so many bytes.
template <typename Visit>
auto WithElement(int64_t bytes, const Visit& visit) {
  switch (bytes) {
    case 1:
      return visit(uint8_t{});
    case 2:
      return visit(uint16_t{});
    case 4:
      return visit(uint32_t{});
    default:
      return visit(uint64_t{});
  }
}

void Fill(void* data, const MlcCheckedBuffer& buffer, uint64_t pattern) {
  WithElement(buffer.element_bytes, [&](auto element) {
    using Element = decltype(element);
    std::fill_n(static_cast<Element*>(data), buffer.elements, static_cast<Element>(pattern));
  });
}

// The first element that is this one in `one` and that one in `other`; -1 if there is none.
int64_t FindBoth(const MlcCheckedBuffer& buffer, const void* one, uint64_t pattern,
                 const void* other, uint64_t other_pattern) {
  return WithElement(buffer.element_bytes, [&](auto element) -> int64_t {
    using Element = decltype(element);
    const auto* here = static_cast<const Element*>(one);
    const auto* there = static_cast<const Element*>(other);
    for (int64_t i = 0; i < buffer.elements; ++i) {
      if (here[i] == static_cast<Element>(pattern) &&
          there[i] == static_cast<Element>(other_pattern)) {
        return i;
      }
    }
    return -1;
  });
}

void CheckedRun::LeaveIfFenced(const void* address) {
  if (landing == nullptr) return;
  for (const FencedMemory& memory : landing->run->memories_) {
    if (!memory.Owns(address)) continue;
    landing->address = address;
    longjmp(landing->where, 1);
  }
}

template <typename Body>
void CheckedRun::Protect(const Body& body) {
  Landing here{this, {}, nullptr};
  Landing* const outer = std::exchange(landing, &here);
  if (_setjmp(here.where) == 0) body();
  landing = outer;
  if (here.address != nullptr) DescribeFence(here.address);
}

void CheckedRun::ParallelFor(MlcContext* context, MlcTask body, void* closure, int64_t count) {
  // A context is the first member of a checked one, which is the base of a run.
  auto& run = static_cast<CheckedRun&>(*reinterpret_cast<MlcCheckedContext*>(context));
  Guarded guarded{run, body, closure};
  run.outer_.parallel_for(&run.outer_, &RunTask, &guarded, count);
  if (run.failed()) longjmp(landing->where, 1);
}

void CheckedRun::RunTask(void* closure, int64_t task) {
  const auto& guarded = *static_cast<Guarded*>(closure);
  if (guarded.run.failed()) return;
  guarded.run.Protect([&] { guarded.body(guarded.closure, task); });
}

void CheckedRun::Report(MlcCheckedContext* context, const MlcAccess* access, int64_t number) {
  try {
    std::string text = access->text;
    const size_t at = text.find("{}");
    if (at != std::string::npos) text.replace(at, 2, std::to_string(number));
    static_cast<CheckedRun*>(context)->SetFault(std::move(text), access->computed);
  } catch (const std::bad_alloc&) {
    static_cast<CheckedRun*>(context)->failed_.store(true, std::memory_order_release);
  }
  longjmp(landing->where, 1);
}

void CheckedRun::SetFault(std::string text, std::string_view computed) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (failed()) return;
  fault_.text = "hlo_mlc: kernel " + std::string(kernel_.name) + ": " + std::move(text);
  fault_.computed = computed;
  failed_.store(true, std::memory_order_release);
}

void CheckedRun::DescribeFence(const void* address) {
  for (size_t i = 0; i < memories_.size(); ++i) {
    const FencedMemory& memory = memories_[i];
    if (!memory.Owns(address)) continue;
    const std::string name(Name(i));
    const int64_t byte = static_cast<const uint8_t*>(address) - memory.data();
    const bool inside = byte >= 0 && byte < memory.bytes();
    SetFault(inside ? "a write to the operand " + name + " at byte " + std::to_string(byte)
                    : "an access that no check knows of, to byte " + std::to_string(byte) + " of " +
                          name + ", which has " + std::to_string(memory.bytes()),
             name);
    return;
  }
}

int64_t CheckedRun::Owner(int64_t position) const {
  const MlcCheckedBuffer& buffer = kernel_.buffers[position];
  if (!is_result(position) || buffer.elements == 0) return -1;
  for (int64_t operand = 0; operand < kernel_.operand_count; ++operand) {
    if (originals_[operand] == originals_[position]) return operand;
  }
  return -1;
}

bool CheckedRun::Prepare() {
  std::vector<bool> taken_over(static_cast<size_t>(buffer_count()), false);
  for (int64_t i = 0; i < buffer_count(); ++i) {
    const MlcCheckedBuffer& buffer = kernel_.buffers[i];
    const int64_t owner = Owner(i);
    const int64_t bytes = buffer.elements * buffer.element_bytes;
    memories_.emplace_back();
    if (!memories_.back().Allocate(owner < 0 ? bytes : 0)) return false;
    if (owner >= 0) {
      taken_over[static_cast<size_t>(owner)] = true;
      pointers_.push_back(data(owner));
      continue;
    }
    pointers_.push_back(data(i));
    if (is_result(i)) {
      Fill(data(i), buffer, pattern(i));
    } else if (bytes > 0) {
      std::memcpy(data(i), originals_[i], static_cast<size_t>(bytes));
    }
  }
  for (int64_t i = 0; i < kernel_.operand_count; ++i) {
    if (!taken_over[static_cast<size_t>(i)]) memories_[static_cast<size_t>(i)].Seal();
  }
  memories_.emplace_back();
  if (!memories_.back().Allocate(kernel_.scratch_bytes)) return false;
  std::memset(memories_.back().data(), kScratchPoison, static_cast<size_t>(kernel_.scratch_bytes));
  return true;
}

void CheckedRun::Run() {
  if (!Prepare()) {
    SetFault("no memory for copies of its buffers between fences", "");
    return;
  }
  Protect([&] { kernel_.body(&context, pointers_.data(), memories_.back().data()); });
  for (size_t i = 0; i < memories_.size() && !failed(); ++i) {
    if (!memories_[i].IsFrayed()) continue;
    const std::string name(Name(i));
    SetFault("something was written in front of " + name, name);
  }
}

bool CheckedRun::LooksUnwritten() const {
  for (int64_t i = kernel_.operand_count; i < buffer_count(); ++i) {
    if (Owner(i) < 0 && FindBoth(kernel_.buffers[i], data(i), pattern(i), data(i), pattern(i)) >= 0) {
      return true;
    }
  }
  return false;
}

void CheckedRun::FindUnwritten(const CheckedRun& other) {
  for (int64_t i = kernel_.operand_count; i < buffer_count(); ++i) {
    if (Owner(i) >= 0) continue;
    const MlcCheckedBuffer& buffer = kernel_.buffers[i];
    const int64_t element =
        FindBoth(buffer, data(i), pattern(i), other.data(i), other.pattern(i));
    if (element < 0) continue;
    SetFault("nothing is written to element " + std::to_string(element) + " of " + buffer.name +
                 ", which has " + std::to_string(buffer.elements),
             buffer.name);
  }
}

void CheckedRun::CopyBack() const {
  for (int64_t i = kernel_.operand_count; i < buffer_count(); ++i) {
    const MlcCheckedBuffer& buffer = kernel_.buffers[i];
    if (buffer.elements == 0) continue;
    std::memcpy(originals_[i], pointers_[static_cast<size_t>(i)],
                static_cast<size_t>(buffer.elements * buffer.element_bytes));
  }
}

}  // namespace

Fault RunChecked(MlcContext& context, const MlcCheckedKernel& kernel, void** buffers) {
  // What calls this is generated code, through which no exception passes.
  try {
    InstallHandler();
    CheckedRun run(context, kernel, buffers, 0);
    run.Run();
    if (!run.failed() && run.LooksUnwritten()) {
      CheckedRun again(context, kernel, buffers, 1);
      again.Run();
      run.FindUnwritten(again);
    }
    if (!run.failed()) run.CopyBack();
    if (run.failed() && run.fault().text.empty()) throw std::bad_alloc();
    return run.fault();
  } catch (const std::bad_alloc&) {
    return {"hlo_mlc: no memory to check a kernel", ""};
  }
}

}  // namespace mlc

#include "row_blocks.h"

#include <mutex>
#include <new>
#include <utility>

#include "buffer_list.h"
#include "trace.h"

namespace mlc {
namespace {

// With so many groups for each thread, none of them needs a second one.
constexpr int64_t kManyGroups = 2;

// One call in blocks that is in progress; its tasks are groups of blocks.
class BlockRun {
 public:
  BlockRun(const std::vector<BlockKernel>& kernels, const RowCall& call, Executor& executor,
           int64_t thread_count)
      : call_(call), executor_(executor), thread_count_(thread_count) {
    int64_t first_row = 0;
    for (const BlockKernel& kernel : kernels) {
      runs_.push_back({&kernel, blocks_, first_row});
      const int64_t blocks = (call.rows - first_row) / kernel.rows;
      first_row += blocks * kernel.rows;
      blocks_ += blocks;
    }
    groups_ = call.groups > 0 ? call.groups : blocks_;
    if (groups_ >= kManyGroups * thread_count) thread_count_ = 1;
  }

  int64_t groups() const { return groups_; }
  std::optional<Failure> TakeFailure() { return std::move(failure_); }

  static void Task(void* run, int64_t task) { static_cast<BlockRun*>(run)->ComputeGroup(task); }

 private:
  // The blocks of one kernel: the number of the first of them, and where it begins.
  struct Run {
    const BlockKernel* kernel;
    int64_t first_block;
    int64_t first_row;
  };

  void ComputeGroup(int64_t group) {
    const int64_t end = FirstBlock(group + 1);
    for (int64_t block = FirstBlock(group); block < end; ++block) Compute(block, group, end);
  }

  int64_t FirstBlock(int64_t group) const { return group * blocks_ / groups_; }

  void Compute(int64_t block, int64_t group, int64_t end) {
    size_t n = runs_.size() - 1;
    while (runs_[n].first_block > block) --n;
    const Run& run = runs_[n];
    const int64_t row = run.first_row + (block - run.first_block) * run.kernel->rows;
    try {
      BufferList buffers(call_.buffers.size());
      for (const RowBuffer& one : call_.buffers) buffers.Add(one.data + row * one.row_bytes);
      for (const RowFold& fold : call_.folds) {
        // By turns, so that the last block of a group writes the result.
        char* const turns[] = {call_.buffers[fold.after].data + group * fold.bytes,
                               fold.spare + group * fold.bytes};
        const int64_t turn = (end - 1 - block) % 2;
        buffers.data()[fold.after] = turns[turn];
        if (block != FirstBlock(group)) buffers.data()[fold.before] = turns[1 - turn];
      }
      if (auto failure =
              RunKernel(*run.kernel->slot, executor_, thread_count_, buffers.data())) {
        Fail(*std::move(failure));
      }
    } catch (const std::bad_alloc&) {
      Fail({true, "hlo_mlc: no memory to call a kernel"});
    }
  }

  void Fail(Failure failure) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!failure_) failure_ = std::move(failure);
  }

  const RowCall& call_;
  Executor& executor_;
  int64_t thread_count_;  // of one block
  std::vector<Run> runs_;
  int64_t blocks_ = 0;
  int64_t groups_ = 0;
  std::mutex mutex_;
  std::optional<Failure> failure_;
};

}  // namespace

std::optional<Failure> RunKernel(Slot& slot, Executor& executor, int64_t thread_count,
                                 void** buffers) {
  const Tracer tracer(slot.id());
  ThreadTeam team(executor, thread_count, tracer);
  bool ran = false;
  tracer.Run(MLC_WHOLE_KERNEL, [&] { ran = RunVariant(slot, team, buffers); });
  if (!ran) {
    return Failure{true, "hlo_mlc: no memory for a kernel's scratch of " +
                             std::to_string(slot.current().scratch_bytes) + " bytes"};
  }
  if (!team.fault().text.empty()) return Failure{false, slot.Located(team.fault())};
  return std::nullopt;
}

std::optional<Failure> RunInBlocks(const std::vector<BlockKernel>& kernels, const RowCall& call,
                                   Executor& executor, int64_t thread_count) {
  BlockRun run(kernels, call, executor, thread_count);
  ThreadTeam team(executor, thread_count);
  team.parallel_for(&team, &BlockRun::Task, &run, run.groups());
  return run.TakeFailure();
}

}  // namespace mlc

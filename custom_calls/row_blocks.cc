#include "row_blocks.h"

#include <mutex>
#include <new>
#include <utility>

#include "buffer_list.h"
#include "trace.h"

namespace mlc {
namespace {

// With so many blocks for each thread, none of them needs a second one.
constexpr int64_t kManyBlocks = 2;

// One call in blocks that is in progress; its tasks are the blocks.
class BlockRun {
 public:
  BlockRun(const std::vector<BlockKernel>& kernels, const std::vector<RowBuffer>& buffers,
           int64_t rows, Executor& executor, int64_t thread_count)
      : buffers_(buffers), executor_(executor), thread_count_(thread_count) {
    int64_t first_row = 0;
    for (const BlockKernel& kernel : kernels) {
      runs_.push_back({&kernel, count_, first_row});
      const int64_t blocks = (rows - first_row) / kernel.rows;
      first_row += blocks * kernel.rows;
      count_ += blocks;
    }
    if (count_ >= kManyBlocks * thread_count) thread_count_ = 1;
  }

  int64_t count() const { return count_; }
  std::optional<Failure> TakeFailure() { return std::move(failure_); }

  static void Task(void* run, int64_t task) { static_cast<BlockRun*>(run)->Compute(task); }

 private:
  // The blocks of one kernel: the number of the first of them, and where it begins.
  struct Run {
    const BlockKernel* kernel;
    int64_t first_block;
    int64_t first_row;
  };

  void Compute(int64_t block) {
    size_t n = runs_.size() - 1;
    while (runs_[n].first_block > block) --n;
    const Run& run = runs_[n];
    const int64_t row = run.first_row + (block - run.first_block) * run.kernel->rows;
    try {
      BufferList buffers(buffers_.size());
      for (const RowBuffer& one : buffers_) buffers.Add(one.data + row * one.row_bytes);
      if (auto failure = RunKernel(*run.kernel->slot, executor_, thread_count_, buffers.data(),
                                   /*dims=*/nullptr)) {
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

  const std::vector<RowBuffer>& buffers_;
  Executor& executor_;
  int64_t thread_count_;  // of one block
  std::vector<Run> runs_;
  int64_t count_ = 0;
  std::mutex mutex_;
  std::optional<Failure> failure_;
};

}  // namespace

std::optional<Failure> RunKernel(Slot& slot, Executor& executor, int64_t thread_count,
                                 void** buffers, const int64_t* dims) {
  const Tracer tracer(slot.id());
  ThreadTeam team(executor, thread_count, tracer);
  bool ran = false;
  tracer.Run(MLC_WHOLE_KERNEL, [&] { ran = RunVariant(slot, team, buffers, dims); });
  if (!ran) {
    return Failure{true, "hlo_mlc: no memory for a kernel's scratch of " +
                             std::to_string(slot.current().scratch_bytes) + " bytes"};
  }
  if (!team.fault().text.empty()) return Failure{false, slot.Located(team.fault())};
  return std::nullopt;
}

std::optional<Failure> RunInBlocks(const std::vector<BlockKernel>& kernels,
                                   const std::vector<RowBuffer>& buffers, int64_t rows,
                                   Executor& executor, int64_t thread_count) {
  BlockRun run(kernels, buffers, rows, executor, thread_count);
  ThreadTeam team(executor, thread_count);
  team.parallel_for(&team, &BlockRun::Task, &run, run.count());
  return run.TakeFailure();
}

}  // namespace mlc

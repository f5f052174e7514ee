// Calls of kernels: of one for all, or of several that compute so many rows of it each.
#ifndef HLO_MLC_ROW_BLOCKS_H_
#define HLO_MLC_ROW_BLOCKS_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "thread_team.h"
#include "variant_table.h"

namespace mlc {

// Why a call did not do what it should.
struct Failure {
  bool is_of_memory;
  std::string text;
};

// Runs a kernel on the caller's thread and at most thread_count - 1 of the executor's.
std::optional<Failure> RunKernel(Slot& slot, Executor& executor, int64_t thread_count,
                                 void** buffers);

// A kernel that computes so many rows at once.
struct BlockKernel {
  std::shared_ptr<Slot> slot;
  int64_t rows;
};

// An operand or a result. Rows lie behind each other, `row_bytes` apart; 0 where each block is given
// all of it.
struct RowBuffer {
  char* data;
  int64_t row_bytes;
};

// What rows are folded to: each block of a group is given, as buffer `before`, the fold of the blocks
// before it, and writes buffer `after`; the group's first block is given what all groups begin with.
// The folds of groups, of `bytes` each, lie behind each other in `after`; `spare` is as large.
struct RowFold {
  size_t before;
  size_t after;
  char* spare;
  int64_t bytes;
};

// What there is to compute: `groups` of blocks, which are as many as each other but for one block.
// Blocks of a group run in order, so that what is folded does not depend on who runs them.
struct RowCall {
  int64_t rows;
  int64_t groups;  // 0 is one for each block
  std::vector<RowBuffer> buffers;
  std::vector<RowFold> folds;
};

// Computes all rows, each once, in as many blocks of the first kernel as there are, then of those
// after it: groups side by side on up to thread_count threads. The last kernel's rows divide what
// those before it leave.
std::optional<Failure> RunInBlocks(const std::vector<BlockKernel>& kernels, const RowCall& call,
                                   Executor& executor, int64_t thread_count);

}  // namespace mlc

#endif  // HLO_MLC_ROW_BLOCKS_H_

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
                                 void** buffers, const int64_t* dims);

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

// Computes `rows` rows, each once, in as many blocks of the first kernel as there are, then of those
// after it: blocks side by side on up to thread_count threads. The last kernel's rows divide what
// those before it leave.
std::optional<Failure> RunInBlocks(const std::vector<BlockKernel>& kernels,
                                   const std::vector<RowBuffer>& buffers, int64_t rows,
                                   Executor& executor, int64_t thread_count);

}  // namespace mlc

#endif  // HLO_MLC_ROW_BLOCKS_H_

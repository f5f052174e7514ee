#include "scratch_pool.h"

#include <new>

#include "mlc_abi.h"

namespace mlc {
namespace {

constexpr std::align_val_t kAlignment{MLC_SCRATCH_ALIGNMENT};

void Free(ScratchPool::Block block) { ::operator delete(block.data, kAlignment, std::nothrow); }

}  // namespace

ScratchPool::~ScratchPool() {
  for (Block block : free_) Free(block);
}

ScratchPool::Lease::Lease(ScratchPool& pool, int64_t bytes) : pool_(pool), wanted_(bytes) {
  if (wanted_ > 0) block_ = pool_.Take(wanted_);
}

ScratchPool::Lease::~Lease() {
  if (block_.data != nullptr) pool_.Return(block_);
}

ScratchPool::Block ScratchPool::Take(int64_t bytes) {
  Block block;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!free_.empty()) {
      block = free_.back();
      free_.pop_back();
    }
  }
  if (block.bytes >= bytes) return block;
  // Too small since the variant changed: replaced, so that the pool never holds more blocks than
  // there were executions at once.
  Free(block);
  return {::operator new(static_cast<size_t>(bytes), kAlignment, std::nothrow), bytes};
}

void ScratchPool::Return(Block block) {
  try {
    std::lock_guard<std::mutex> lock(mutex_);
    free_.push_back(block);
  } catch (const std::bad_alloc&) {
    Free(block);
  }
}

}  // namespace mlc

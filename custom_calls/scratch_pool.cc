#include "scratch_pool.h"

#include <pthread.h>

#include <algorithm>
#include <new>

#include "pages.h"
#include "mlc_abi.h"

namespace mlc {
namespace {

constexpr std::align_val_t kAlignment{MLC_SCRATCH_ALIGNMENT};

void* Allocate(int64_t bytes) {
  void* data = ::operator new(static_cast<size_t>(bytes), kAlignment, std::nothrow);
  if (data != nullptr) PreferHugePages(data, bytes);
  return data;
}

void Free(void* data) noexcept { ::operator delete(data, kAlignment, std::nothrow); }

}  // namespace

ScratchPool& ScratchPool::Get() {
  static ScratchPool& pool = *new ScratchPool;
  static const int registered = pthread_atfork([] { pool.mutex_.lock(); },
                                               [] { pool.mutex_.unlock(); },
                                               [] { pool.mutex_.unlock(); });
  static_cast<void>(registered);
  return pool;
}

void ScratchPool::Expect(int64_t bytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  expected_.insert(bytes);
}

void ScratchPool::Forget(int64_t bytes) noexcept {
  std::lock_guard<std::mutex> lock(mutex_);
  if (const auto found = expected_.find(bytes); found != expected_.end()) expected_.erase(found);
  const int64_t most = expected_.empty() ? 0 : *expected_.rbegin();
  for (; !free_.empty() && free_.back().bytes > most; free_.pop_back()) Free(free_.back().data);
}

ScratchPool::Lease::Lease(int64_t bytes) : wanted_(bytes) {
  if (wanted_ > 0) block_ = Get().Take(wanted_);
}

ScratchPool::Lease::~Lease() {
  if (block_.data != nullptr) Get().Return(block_);
}

ScratchPool::Block ScratchPool::Take(int64_t bytes) {
  Block block;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!free_.empty()) {
      // The smallest that is large enough, or else the largest, which is replaced: so there are
      // never more blocks than there were executions at once.
      auto found = std::find_if(free_.begin(), free_.end(),
                                [=](const Block& one) { return one.bytes >= bytes; });
      if (found == free_.end()) --found;
      block = *found;
      free_.erase(found);
    }
  }
  if (block.bytes >= bytes) return block;
  Free(block.data);
  return {Allocate(bytes), bytes};
}

void ScratchPool::Return(Block block) {
  try {
    std::lock_guard<std::mutex> lock(mutex_);
    free_.insert(std::find_if(free_.begin(), free_.end(),
                              [=](const Block& one) { return one.bytes >= block.bytes; }),
                 block);
  } catch (const std::bad_alloc&) {
    Free(block.data);
  }
}

}  // namespace mlc

// Working memory of kernels, kept between executions.
#ifndef HLO_MLC_SCRATCH_POOL_H_
#define HLO_MLC_SCRATCH_POOL_H_

#include <cstdint>
#include <mutex>
#include <set>
#include <vector>

namespace mlc {

// Aligned blocks that were used before, so that an execution neither allocates nor faults pages.
// Kernels take turns with them: it holds as many blocks as there ever were executions at once, none
// larger than the largest that a kernel takes.
class ScratchPool {
 public:
  // That of the process, which a forked child finds usable. Never destroyed, because XLA's threads
  // outlive static objects.
  static ScratchPool& Get();

  // A kernel that takes blocks of `bytes` comes and goes: with it go free blocks that are larger
  // than all others need.
  void Expect(int64_t bytes);
  void Forget(int64_t bytes) noexcept;

  // Borrows a block of at least `bytes` for as long as it lives; none when `bytes` is 0.
  class Lease {
   public:
    explicit Lease(int64_t bytes);
    ~Lease();
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;

    void* data() const { return block_.data; }
    bool failed() const { return wanted_ > 0 && block_.data == nullptr; }

   private:
    friend class ScratchPool;

    struct Block {
      void* data = nullptr;
      int64_t bytes = 0;
    };

    const int64_t wanted_;
    Block block_;
  };

 private:
  using Block = Lease::Block;

  ScratchPool() = default;

  Block Take(int64_t bytes);
  void Return(Block block);

  std::mutex mutex_;
  std::vector<Block> free_;  // the smallest first
  std::multiset<int64_t> expected_;
};

}  // namespace mlc

#endif  // HLO_MLC_SCRATCH_POOL_H_

// Working memory of kernels, kept between executions.
#ifndef HLO_MLC_SCRATCH_POOL_H_
#define HLO_MLC_SCRATCH_POOL_H_

#include <cstdint>
#include <mutex>
#include <vector>

namespace mlc {

// Aligned blocks that were used before, so that an execution neither allocates nor faults pages.
// Holds as many blocks as there ever were executions at once.
class ScratchPool {
 public:
  ScratchPool() = default;
  ~ScratchPool();
  ScratchPool(const ScratchPool&) = delete;
  ScratchPool& operator=(const ScratchPool&) = delete;

  struct Block {
    void* data = nullptr;
    int64_t bytes = 0;
  };

  // Borrows a block of at least `bytes` for as long as it lives; none when `bytes` is 0.
  class Lease {
   public:
    Lease(ScratchPool& pool, int64_t bytes);
    ~Lease();
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;

    void* data() const { return block_.data; }
    bool failed() const { return wanted_ > 0 && block_.data == nullptr; }

   private:
    ScratchPool& pool_;
    const int64_t wanted_;
    Block block_;
  };

 private:
  Block Take(int64_t bytes);
  void Return(Block block);

  std::mutex mutex_;
  std::vector<Block> free_;
};

}  // namespace mlc

#endif  // HLO_MLC_SCRATCH_POOL_H_

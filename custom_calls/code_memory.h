// Memory that machine code runs in.
#ifndef HLO_MLC_CODE_MEMORY_H_
#define HLO_MLC_CODE_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>

namespace mlc {

// Whole pages of large regions, which are either written or executed, never both. Neighbours with
// the same access are one memory map to the system, which allows a process 65,530 of them
// (vm.max_map_count): thousands of pieces of code take a few. Pages of released code stay mapped
// and empty until others take them.
class CodeMemory {
 public:
  // That of the process, which a forked child finds usable.
  static CodeMemory& Get();

  // Pages of its own for so many bytes, which may be written; nullptr if there is no memory.
  void* Reserve(int64_t bytes);

  // Copies code into pages that were reserved for it and makes them executable; false if the system
  // refuses.
  bool Publish(void* pages, const void* code, int64_t bytes);

  // Gives back pages that were reserved, published or not. Nothing may run in them any longer.
  void Release(void* pages);

 private:
  using Ranges = std::map<uintptr_t, size_t>;  // lengths by first address, in bytes

  Ranges::iterator FindFree(size_t bytes);
  Ranges::iterator MapRegion(size_t bytes);

  std::mutex mutex_;
  Ranges free_;  // no two of them adjoin
  Ranges used_;
};

}  // namespace mlc

#endif  // HLO_MLC_CODE_MEMORY_H_

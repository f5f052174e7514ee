#include "pages.h"

#include <sys/mman.h>

#include <cstdlib>

namespace mlc {
namespace {

constexpr uintptr_t kHugePage = 2 << 20;
constexpr size_t kLargestKept = 32 << 20;  // DEFAULT_MMAP_THRESHOLD_MAX of glibc
constexpr size_t kOfTheAllocator = 64 << 10;  // what a block takes beside what was asked for: less

}  // namespace

void PreferHugePages(void* data, int64_t bytes) noexcept {
  const auto address = reinterpret_cast<uintptr_t>(data);
  const uintptr_t first = (address + kHugePage - 1) / kHugePage * kHugePage;
  const uintptr_t last = (address + static_cast<uintptr_t>(bytes)) / kHugePage * kHugePage;
  if (first < last) madvise(reinterpret_cast<void*>(first), last - first, MADV_HUGEPAGE);
}

void KeepFreedMemory() noexcept {
  void* volatile never_written = std::malloc(kLargestKept - kOfTheAllocator);
  std::free(never_written);
}

}  // namespace mlc

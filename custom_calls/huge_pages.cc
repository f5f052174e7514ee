#include "huge_pages.h"

#include <sys/mman.h>

namespace mlc {
namespace {

constexpr uintptr_t kHugePage = 2 << 20;

}  // namespace

void PreferHugePages(void* data, int64_t bytes) noexcept {
  const auto address = reinterpret_cast<uintptr_t>(data);
  const uintptr_t first = (address + kHugePage - 1) / kHugePage * kHugePage;
  const uintptr_t last = (address + static_cast<uintptr_t>(bytes)) / kHugePage * kHugePage;
  if (first < last) madvise(reinterpret_cast<void*>(first), last - first, MADV_HUGEPAGE);
}

}  // namespace mlc

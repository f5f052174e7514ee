#include "code_memory.h"

#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <iterator>

namespace mlc {
namespace {

// Code of a few hundred kernels: most take one page or two.
constexpr size_t kRegionBytes = size_t{1} << 20;

constexpr int kWritten = PROT_READ | PROT_WRITE;
constexpr int kExecuted = PROT_READ | PROT_EXEC;

size_t WholePages(size_t bytes) {
  static const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return (bytes + page - 1) / page * page;
}

void* Pointer(uintptr_t address) { return reinterpret_cast<void*>(address); }

}  // namespace

CodeMemory& CodeMemory::Get() {
  static CodeMemory& memory = *new CodeMemory;
  // A child has a copy of all pages; whoever of its parent had the lock is not there to open it.
  static const int registered = pthread_atfork([] { memory.mutex_.lock(); },
                                               [] { memory.mutex_.unlock(); },
                                               [] { memory.mutex_.unlock(); });
  static_cast<void>(registered);
  return memory;
}

void* CodeMemory::Reserve(int64_t bytes) {
  const size_t wanted = WholePages(static_cast<size_t>(std::max<int64_t>(bytes, 1)));
  std::lock_guard<std::mutex> lock(mutex_);
  auto found = FindFree(wanted);
  if (found == free_.end()) found = MapRegion(wanted);
  if (found == free_.end()) return nullptr;
  const auto [start, length] = *found;
  // Before anything is taken: what follows cannot fail.
  if (mprotect(Pointer(start), wanted, kWritten) != 0) return nullptr;
  const auto taken = used_.emplace(start, wanted).first;
  if (length > wanted) {
    try {
      free_.emplace_hint(std::next(found), start + wanted, length - wanted);
    } catch (...) {
      used_.erase(taken);
      throw;
    }
  }
  free_.erase(found);
  return Pointer(start);
}

bool CodeMemory::Publish(void* pages, const void* code, int64_t bytes) {
  const size_t length = static_cast<size_t>(bytes);
  std::memcpy(pages, code, length);
  char* const start = static_cast<char*>(pages);
  __builtin___clear_cache(start, start + length);
  return mprotect(pages, WholePages(length), kExecuted) == 0;
}

void CodeMemory::Release(void* pages) {
  std::lock_guard<std::mutex> lock(mutex_);
  // Nodes change hands, so that giving back needs no memory.
  auto node = used_.extract(reinterpret_cast<uintptr_t>(pages));
  if (node.empty()) return;
  madvise(pages, node.mapped(), MADV_DONTNEED);
  auto here = free_.insert(std::move(node)).position;
  const auto next = std::next(here);
  if (next != free_.end() && here->first + here->second == next->first) {
    here->second += next->second;
    free_.erase(next);
  }
  if (here == free_.begin()) return;
  const auto previous = std::prev(here);
  if (previous->first + previous->second == here->first) {
    previous->second += here->second;
    free_.erase(here);
  }
}

CodeMemory::Ranges::iterator CodeMemory::FindFree(size_t bytes) {
  return std::find_if(free_.begin(), free_.end(),
                      [bytes](const auto& range) { return range.second >= bytes; });
}

CodeMemory::Ranges::iterator CodeMemory::MapRegion(size_t bytes) {
  const size_t length = std::max(bytes, WholePages(kRegionBytes));
  void* const start = mmap(nullptr, length, kWritten, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (start == MAP_FAILED) return free_.end();
  // A few pages at a time are written: whole large ones would be cleared, and split again.
  madvise(start, length, MADV_NOHUGEPAGE);
  try {
    return free_.emplace(reinterpret_cast<uintptr_t>(start), length).first;
  } catch (...) {
    munmap(start, length);
    throw;
  }
}

}  // namespace mlc

#include "fenced_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

namespace mlc {
namespace {

constexpr uint8_t kMargin = 0x5A;

size_t PageBytes() {
  static const size_t bytes = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}

}  // namespace

FencedMemory::FencedMemory(FencedMemory&& other) noexcept
    : base_(std::exchange(other.base_, nullptr)),
      mapped_(other.mapped_),
      data_(other.data_),
      bytes_(other.bytes_) {}

FencedMemory::~FencedMemory() {
  if (base_ != nullptr) munmap(base_, mapped_);
}

bool FencedMemory::Allocate(int64_t bytes) {
  const size_t page = PageBytes();
  const size_t inner = (static_cast<size_t>(bytes) + page - 1) / page * page;
  mapped_ = inner + 2 * page;
  void* base = mmap(nullptr, mapped_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (base == MAP_FAILED) return false;
  base_ = static_cast<uint8_t*>(base);
  if (inner > 0 && mprotect(base_ + page, inner, PROT_READ | PROT_WRITE) != 0) return false;
  data_ = base_ + page + inner - bytes;
  bytes_ = bytes;
  std::fill(base_ + page, data_, kMargin);
  return true;
}

void FencedMemory::Seal() {
  const size_t page = PageBytes();
  if (mapped_ > 2 * page) mprotect(base_ + page, mapped_ - 2 * page, PROT_READ);
}

bool FencedMemory::Owns(const void* address) const {
  const uint8_t* at = static_cast<const uint8_t*>(address);
  return base_ <= at && at < base_ + mapped_;
}

bool FencedMemory::IsFrayed() const {
  return std::any_of(base_ + PageBytes(), data_, [](uint8_t byte) { return byte != kMargin; });
}

}  // namespace mlc

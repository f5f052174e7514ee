// Arrays between pages that cannot be touched, for kernels with checks.
#ifndef HLO_MLC_FENCED_MEMORY_H_
#define HLO_MLC_FENCED_MEMORY_H_

#include <cstddef>
#include <cstdint>

namespace mlc {

// Memory that ends where a page without access begins, with another such page in front. What lies
// between the page in front and the first byte is filled with a pattern, so that what is written
// there shows.
class FencedMemory {
 public:
  FencedMemory() = default;
  FencedMemory(FencedMemory&& other) noexcept;
  ~FencedMemory();
  FencedMemory(const FencedMemory&) = delete;
  FencedMemory& operator=(const FencedMemory&) = delete;

  // Room for so many bytes, the last of them in front of the fence; false if there is no memory.
  bool Allocate(int64_t bytes);

  // Makes the array read-only.
  void Seal();

  uint8_t* data() const { return data_; }
  int64_t bytes() const { return bytes_; }

  // Whether the address is in the array or in the fences around it.
  bool Owns(const void* address) const;

  // Whether something was written in front of the array.
  bool IsFrayed() const;

 private:
  uint8_t* base_ = nullptr;  // of the page in front
  size_t mapped_ = 0;
  uint8_t* data_ = nullptr;
  int64_t bytes_ = 0;
};

}  // namespace mlc

#endif  // HLO_MLC_FENCED_MEMORY_H_

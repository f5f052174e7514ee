// The addresses that a kernel is called with.
#ifndef HLO_MLC_BUFFER_LIST_H_
#define HLO_MLC_BUFFER_LIST_H_

#include <cstddef>
#include <memory>

namespace mlc {

// Operand and result addresses in one array, on the stack unless there are unusually many.
class BufferList {
 public:
  explicit BufferList(size_t count) {
    if (count > kInline) {
      heap_ = std::make_unique<void*[]>(count);
      data_ = heap_.get();
    }
  }
  void Add(void* buffer) { data_[size_++] = buffer; }
  void** data() { return data_; }

 private:
  static constexpr size_t kInline = 32;
  void* inline_[kInline];
  std::unique_ptr<void*[]> heap_;
  void** data_ = inline_;
  size_t size_ = 0;
};

}  // namespace mlc

#endif  // HLO_MLC_BUFFER_LIST_H_

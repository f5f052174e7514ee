// The floating-point environment that kernels are compiled for.
#ifndef HLO_MLC_FLOAT_MODE_H_
#define HLO_MLC_FLOAT_MODE_H_

#include <cstdint>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace mlc {

// While alive, the thread rounds to nearest, flushes subnormals to zero and does not trap, as XLA
// has it. XLA's own threads already run so: then nothing is written, because writing the control
// register costs tens of cycles and reading it a few.
class FloatMode {
 public:
  FloatMode() : saved_(Read()), changed_((saved_ & kControlBits) != kKernelMode) {
    if (changed_) Write(kKernelMode);
  }
  ~FloatMode() {
    if (changed_) Write(saved_);
  }
  FloatMode(const FloatMode&) = delete;
  FloatMode& operator=(const FloatMode&) = delete;

 private:
#if defined(__x86_64__)
  using Register = uint32_t;
  static constexpr Register kKernelMode = 0x8000 | 0x0040 | 0x1f80;  // FTZ, DAZ, traps masked
  static constexpr Register kControlBits = 0xffc0;  // without the sticky exception flags
  static Register Read() { return _mm_getcsr(); }
  static void Write(Register value) { _mm_setcsr(value); }
#elif defined(__aarch64__)
  using Register = uint64_t;
  static constexpr Register kKernelMode = Register{1} << 24;  // FZ
  static constexpr Register kControlBits = 0xffffffff;
  static Register Read() {
    Register value;
    __asm__ __volatile__("mrs %0, fpcr" : "=r"(value));
    return value;
  }
  static void Write(Register value) { __asm__ __volatile__("msr fpcr, %0" : : "r"(value)); }
#else
#error "hlo_mlc supports x86-64 and aarch64: state the floating-point mode of this processor here"
#endif

  const Register saved_;
  const bool changed_;
};

}  // namespace mlc

#endif  // HLO_MLC_FLOAT_MODE_H_

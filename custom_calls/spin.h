// What a thread does between two looks at a value that another is about to change.
#ifndef HLO_MLC_SPIN_H_
#define HLO_MLC_SPIN_H_

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace mlc {

inline void SpinPause() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  __asm__ __volatile__("isb");  // "yield" does nothing on most cores; isb stalls for a few cycles
#endif
}

}  // namespace mlc

#endif  // HLO_MLC_SPIN_H_

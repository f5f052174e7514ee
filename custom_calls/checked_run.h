// Running kernels that check their accesses (HLO_MLC_CHECK=1).
#ifndef HLO_MLC_CHECKED_RUN_H_
#define HLO_MLC_CHECKED_RUN_H_

#include <string>

#include "mlc_abi.h"

namespace mlc {

// What a kernel failed by; `text` is empty if it did not. `computed` is the name of the buffer that
// it was about to compute.
struct Fault {
  std::string text;
  std::string computed;
};

// Runs a kernel's body on copies of its buffers that lie between fences, results and scratch filled
// with patterns, on the threads of `context`; copies the results back unless there was a fault.
//
// The first fault ends the task that it happens in. Tasks that have begun end by themselves, others
// are skipped, and the kernel goes on no further than the end of the parallel loop. A fault is what
// the kernel reports, an access to a fence, what was written in front of an array, and an element of
// a result that nothing was written to: one that holds the pattern it was filled with, whichever of
// two that is.
Fault RunChecked(MlcContext& context, const MlcCheckedKernel& kernel, void** buffers);

}  // namespace mlc

#endif  // HLO_MLC_CHECKED_RUN_H_

// Fewer page faults for large results.
#ifndef HLO_MLC_PAGES_H_
#define HLO_MLC_PAGES_H_

#include <cstdint>

namespace mlc {

// Asks the system for huge pages where memory that is about to be written is large. What XLA hands
// us to write is fresh from the system as a rule: a fault for every 4 KiB takes longer than most
// kernels do, one for every 2 MiB does not. Pages that lie partly outside are left alone, so that
// no more memory is taken; where the system has no huge pages to give, nothing happens.
void PreferHugePages(void* data, int64_t bytes) noexcept;

// Has glibc keep memory that is freed for what is allocated next, as it does by itself in a process
// that has ever freed a block of nearly 32 MiB: it takes the largest block that was freed for what
// the process will need again, keeps what is not larger on its heap, and gives back from there only
// what is twice as large.  Without that, results that take turns, as in `x = step(x)`, are given
// back to the system and fresh again every other call: 4 MiB took 400 us instead of 60, 16 MiB 750
// instead of 360.  Where the user or the process has set these limits, nothing changes.
//
// Source: mallopt(3), M_MMAP_THRESHOLD and M_TRIM_THRESHOLD.
void KeepFreedMemory() noexcept;

}  // namespace mlc

#endif  // HLO_MLC_PAGES_H_

// Fewer page faults for large results.
#ifndef HLO_MLC_HUGE_PAGES_H_
#define HLO_MLC_HUGE_PAGES_H_

#include <cstdint>

namespace mlc {

// Asks the system for huge pages where memory that is about to be written is large. What XLA hands
// us to write is fresh from the system as a rule: a fault for every 4 KiB takes longer than most
// kernels do, one for every 2 MiB does not. Pages that lie partly outside are left alone, so that
// no more memory is taken; where the system has no huge pages to give, nothing happens.
void PreferHugePages(void* data, int64_t bytes) noexcept;

}  // namespace mlc

#endif  // HLO_MLC_HUGE_PAGES_H_

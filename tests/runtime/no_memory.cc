// Calls every function of mlc_abi.h while no memory is to be had, then while there is some again.
// Silence is success.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>

#include "mlc_abi.h"

namespace {

std::atomic<int64_t> allowed{INT64_MAX};  // allocations
std::atomic<int64_t> sum{0};

void* Allocate(size_t bytes, size_t alignment) {
  if (allowed.fetch_sub(1) <= 0) return nullptr;
  return std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
}

void* AllocateOrThrow(size_t bytes, size_t alignment) {
  void* const found = Allocate(bytes, alignment);
  if (found == nullptr) throw std::bad_alloc();
  return found;
}

void Add(void*, int64_t task) { sum += task; }

void Kernel(MlcContext* context, void**, void*) {
  context->parallel_for(context, Add, nullptr, 1000);
}

// Whether `call` says, after so many allocations, that there is no memory, or else is done.
template <typename Call>
void Check(const char* name, Call call) {
  for (int64_t count = 0; count < 12; ++count) {
    allowed = count;
    const int said = call();
    allowed = INT64_MAX;
    if (said == -1) continue;
    if (said != 1) std::printf("%s says %d with %d allocations\n", name, said, int(count));
    return;
  }
  std::printf("%s never has enough memory\n", name);
}

}  // namespace

constexpr size_t kUsual = alignof(std::max_align_t);
void* operator new(size_t bytes) { return AllocateOrThrow(bytes, kUsual); }
void* operator new(size_t bytes, const std::nothrow_t&) noexcept { return Allocate(bytes, kUsual); }
void* operator new(size_t bytes, std::align_val_t alignment) {
  return AllocateOrThrow(bytes, size_t(alignment));
}
void* operator new(size_t bytes, std::align_val_t alignment, const std::nothrow_t&) noexcept {
  return Allocate(bytes, size_t(alignment));
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, size_t, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t, const std::nothrow_t&) noexcept {
  std::free(memory);
}

int main() {
  const char* const id = "a name that is too long to be kept in the string itself";
  const char code[] = "no code";
  int64_t calls, nanoseconds;
  Check("run", [] {
    sum = 0;
    const int said = mlc_run(Kernel, nullptr, 0, 4);
    if (said == 1 && sum != 1000 * 999 / 2) std::puts("tasks are missing");
    return said;
  });
  Check("run with scratch", [] { return mlc_run(Kernel, nullptr, 4096, 4); });
  Check("set", [&] { return mlc_variant_set(id, Kernel, 0); });
  Check("promise", [&] {
    void* const promise = mlc_variant_promise(id, 4096);
    if (promise == nullptr) return -1;
    allowed = 0;  // keeping it needs none
    mlc_variant_keep(promise, Kernel, 0);
    return 1;
  });
  Check("exists", [&] { return mlc_variant_exists(id); });
  Check("describe", [&] { return mlc_variant_describe(id, "a long line of a program of the user's"); });
  Check("read", [&] { return mlc_profile_read(id, &calls, &nanoseconds); });
  Check("remove unused", [&] { return mlc_variant_remove_unused(id); });
  Check("set", [&] { return mlc_variant_set(id, Kernel, 0); });
  Check("remove", [&] { return mlc_variant_remove(id); });
  Check("trace", [] {
    void* const trace = mlc_trace_begin(8);
    if (trace == nullptr) return -1;
    mlc_trace_end(trace);
    mlc_trace_release(trace);
    return 1;
  });
  void* pages[64];
  for (void*& one : pages) {
    Check("reserve", [&] { return (one = mlc_code_reserve(5000)) == nullptr ? -1 : 1; });
    Check("publish", [&] { return mlc_code_publish(one, code, sizeof(code)); });
    if (std::memcmp(one, code, sizeof(code)) != 0) std::puts("published is something else");
  }
  allowed = 0;  // giving back needs none, in whatever order
  for (int i = 0; i < 64; ++i) mlc_code_release(pages[i * 27 % 64]);
  allowed = INT64_MAX;
  // All of it has become one again: what takes most of the region comes from there.
  if (mlc_code_reserve(900 << 10) != pages[0]) std::puts("what was given back is not joined");
  return 0;
}

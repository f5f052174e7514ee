#include "trace.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <new>

namespace mlc {
namespace {

// Whether there is one, for those who only want to know that; `current` is under the lock.
std::atomic<bool> recording{false};
std::mutex current_mutex;
std::shared_ptr<Trace> current;
std::atomic<int64_t> next_serial{1};

}  // namespace

// Not initialized, so that only pages that are written take memory.
Trace::Lane::Lane(int64_t capacity)
    : thread(syscall(SYS_gettid)), spans(new MlcSpan[static_cast<size_t>(capacity)]) {}

Trace::Trace(int64_t spans_per_thread)
    : serial_(next_serial.fetch_add(1, std::memory_order_relaxed)), capacity_(spans_per_thread) {}

std::shared_ptr<Trace> Trace::Begin(int64_t spans_per_thread) {
  std::lock_guard<std::mutex> lock(current_mutex);
  if (current != nullptr) return nullptr;
  current.reset(new Trace(spans_per_thread));
  recording.store(true, std::memory_order_relaxed);
  return current;
}

void Trace::End() {
  std::lock_guard<std::mutex> lock(current_mutex);
  if (current.get() != this) return;
  recording.store(false, std::memory_order_relaxed);
  current.reset();
}

std::shared_ptr<Trace> Trace::Current() {
  if (!recording.load(std::memory_order_relaxed)) return nullptr;
  std::lock_guard<std::mutex> lock(current_mutex);
  return current;
}

int64_t Trace::Number(std::string_view kernel_id) {
  std::lock_guard<std::mutex> lock(mutex_);
  for (size_t number = 0; number < kernels_.size(); ++number) {
    if (*kernels_[number] == kernel_id) return static_cast<int64_t>(number);
  }
  kernels_.push_back(std::make_unique<const std::string>(kernel_id));
  return static_cast<int64_t>(kernels_.size()) - 1;
}

void Trace::Add(const MlcSpan& span) noexcept {
  Lane* lane = OwnLane();
  if (lane == nullptr) return;
  const int64_t count = lane->count.load(std::memory_order_relaxed);
  if (count == capacity_) {
    lane->lost.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  lane->spans[static_cast<size_t>(count)] = span;
  lane->count.store(count + 1, std::memory_order_release);  // who reads the count finds the span
}

Trace::Lane* Trace::OwnLane() noexcept {
  static thread_local int64_t serial = 0;
  static thread_local Lane* lane = nullptr;
  if (serial == serial_) return lane;
  try {
    auto fresh = std::make_unique<Lane>(capacity_);
    std::lock_guard<std::mutex> lock(mutex_);
    lanes_.push_back(std::move(fresh));
    lane = lanes_.back().get();
  } catch (const std::bad_alloc&) {
    return nullptr;  // asked again for the next span
  }
  serial = serial_;
  return lane;
}

int64_t Trace::lane_count() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return static_cast<int64_t>(lanes_.size());
}

MlcLane Trace::lane(int64_t number) const {
  std::lock_guard<std::mutex> lock(mutex_);
  const Lane& lane = *lanes_[static_cast<size_t>(number)];
  return {lane.thread, lane.spans.get(), lane.count.load(std::memory_order_acquire),
          lane.lost.load(std::memory_order_relaxed)};
}

const char* Trace::kernel_id(int64_t number) const {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto index = static_cast<size_t>(number);
  return index < kernels_.size() ? kernels_[index]->c_str() : nullptr;
}

int64_t Tracer::Now() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
}

}  // namespace mlc

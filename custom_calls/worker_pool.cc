#include "worker_pool.h"

#include <pthread.h>

#include <exception>
#include <thread>

#include "spin.h"

namespace mlc {
namespace {

constexpr int kSpinsBeforeSleep = 20000;  // about half a millisecond

std::atomic<WorkerPool*> process_pool{nullptr};

void ForgetPool() { process_pool.store(nullptr, std::memory_order_relaxed); }

}  // namespace

WorkerPool& WorkerPool::Get() {
  static const int registered = pthread_atfork(nullptr, nullptr, ForgetPool);
  static_cast<void>(registered);
  WorkerPool* pool = process_pool.load(std::memory_order_acquire);
  if (pool != nullptr) return *pool;
  WorkerPool* fresh = new WorkerPool;
  if (process_pool.compare_exchange_strong(pool, fresh)) return *fresh;
  delete fresh;
  return *pool;
}

void WorkerPool::EnsureWorkers(int64_t count) {
  std::lock_guard<std::mutex> lock(mutex_);
  try {
    for (; workers_ < count; ++workers_) std::thread([this] { Serve(); }).detach();
  } catch (const std::exception&) {  // no thread is to be had, or no memory
    // parallel_for is right with any number of helpers, none included.
  }
}

void WorkerPool::Schedule(Job* job) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    jobs_.push_back(job);
    pending_.fetch_add(1, std::memory_order_release);
  }
  job_added_.notify_one();
}

void WorkerPool::Serve() {
  for (;;) Next()->Run();
}

Job* WorkerPool::Next() {
  for (int spin = 0; spin < kSpinsBeforeSleep; ++spin) {
    if (pending_.load(std::memory_order_acquire) > 0) {
      std::lock_guard<std::mutex> lock(mutex_);
      if (!jobs_.empty()) return Pop();
    }
    SpinPause();
  }
  std::unique_lock<std::mutex> lock(mutex_);
  job_added_.wait(lock, [this] { return !jobs_.empty(); });
  return Pop();
}

Job* WorkerPool::Pop() {
  Job* job = jobs_.front();
  jobs_.pop_front();
  pending_.fetch_sub(1, std::memory_order_relaxed);
  return job;
}

}  // namespace mlc

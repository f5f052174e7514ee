#include "cuda_program.h"

#include <stdexcept>
#include <unordered_map>
#include <utility>

namespace mlc {
namespace {

// Reads a plan, number by number.
class Numbers {
 public:
  Numbers(const int64_t* first, int64_t count) : next_(first), end_(first + count) {}
  bool AtEnd() const { return next_ == end_; }
  int64_t Next(int64_t lowest, int64_t highest) {
    if (AtEnd() || *next_ < lowest || *next_ > highest) {
      throw std::invalid_argument("malformed launch plan");
    }
    return *next_++;
  }

 private:
  const int64_t* next_;
  const int64_t* end_;
};

constexpr int64_t kMostBlocks = (int64_t{1} << 31) - 1;
constexpr int64_t kMostThreads = 1024;
constexpr int64_t kMostSharedBytes = int64_t{1} << 20;
constexpr int64_t kMostBuffers = 4096;
constexpr int64_t kMostCounters = 64;
constexpr uintptr_t kAlignment = 16;  // of the widest load of a thread

struct Registry {
  std::mutex mutex;
  std::unordered_map<std::string, std::shared_ptr<CudaProgram>> programs;
};

Registry& GetRegistry() {
  static Registry& registry = *new Registry;
  return registry;
}

}  // namespace

CudaProgram::CudaProgram(std::string name, std::string image, std::vector<std::string> functions,
                         const int64_t* plan, int64_t plan_size, int64_t scratch_bytes)
    : name_(std::move(name)),
      image_(std::move(image)),
      functions_(std::move(functions)),
      shared_bytes_(functions_.size()),
      scratch_bytes_(scratch_bytes) {
  Numbers numbers(plan, plan_size);
  const auto function_count = static_cast<int64_t>(functions_.size());
  while (!numbers.AtEnd()) {
    CudaLaunch launch;
    launch.function = numbers.Next(0, function_count - 1);
    launch.blocks = static_cast<unsigned>(numbers.Next(1, kMostBlocks));
    launch.threads = static_cast<unsigned>(numbers.Next(1, kMostThreads));
    launch.shared_bytes = static_cast<unsigned>(numbers.Next(0, kMostSharedBytes));
    unsigned& most = shared_bytes_[static_cast<size_t>(launch.function)];
    most = launch.shared_bytes > most ? launch.shared_bytes : most;
    launch.buffers.resize(static_cast<size_t>(numbers.Next(0, kMostBuffers)));
    for (int64_t& buffer : launch.buffers) {
      buffer = numbers.Next(0, kMostBuffers);
      most_buffers_ = buffer + 1 > most_buffers_ ? buffer + 1 : most_buffers_;
    }
    launch.takes_scratch = numbers.Next(0, 1) != 0;
    takes_scratch_ = takes_scratch_ || launch.takes_scratch;
    launch.counters.resize(static_cast<size_t>(numbers.Next(0, kMostCounters)));
    for (int32_t& counter : launch.counters) {
      counter = static_cast<int32_t>(numbers.Next(0, INT32_MAX));
    }
    launches_.push_back(std::move(launch));
  }
}

std::string CudaProgram::Load() {
  const CudaDriver& driver = CudaDriver::Get();
  if (!driver.error.empty()) return "no CUDA driver for kernel " + name_ + ": " + driver.error;
  int device = 0;
  if (const CudaResult result = driver.GetDevice(&device); result != 0) {
    return driver.Describe("cuCtxGetDevice", result) + " for kernel " + name_;
  }
  if (device >= kMostDevices) return "kernel " + name_ + " expects fewer than 64 GPUs";
  return loaded_[device].load(std::memory_order_acquire) ? "" : LoadOn(device);
}

std::string CudaProgram::LoadOn(int device) {
  const CudaDriver& driver = CudaDriver::Get();
  const std::lock_guard<std::mutex> lock(loading_);
  if (loaded_[device].load(std::memory_order_relaxed)) return "";
  // Never unloaded: an executable that runs it may live as long as the process.
  CudaModule module = nullptr;
  if (const CudaResult result = driver.LoadModule(&module, image_.data()); result != 0) {
    return driver.Describe("cuModuleLoadData", result) + " for kernel " + name_;
  }
  std::vector<CudaFunction> handles(functions_.size());
  for (size_t n = 0; n < functions_.size(); ++n) {
    const CudaResult result = driver.GetFunction(&handles[n], module, functions_[n].c_str());
    if (result != 0) {
      return driver.Describe("cuModuleGetFunction", result) + " for " + functions_[n] +
             " of kernel " + name_;
    }
    if (shared_bytes_[n] == 0) continue;
    const CudaResult allowed = driver.SetAttribute(handles[n], kMostDynamicSharedBytes,
                                                   static_cast<int>(shared_bytes_[n]));
    if (allowed != 0) {
      return driver.Describe("cuFuncSetAttribute", allowed) + " for " +
             std::to_string(shared_bytes_[n]) + " bytes of shared memory of " + functions_[n] +
             " of kernel " + name_;
    }
  }
  handles_[device] = std::move(handles);
  loaded_[device].store(true, std::memory_order_release);
  return "";
}

std::string CudaProgram::Launch(CudaStream stream, void* const* buffers, int64_t buffer_count,
                                int64_t last_bytes) {
  if (std::string error = Load(); !error.empty()) return error;
  if (buffer_count < most_buffers_ + takes_scratch_) {
    return "kernel " + name_ + " expects more operands and results than it is given";
  }
  if (takes_scratch_ && last_bytes < scratch_bytes_) {
    // Another schedule of it was published between this program's compilation and its loading.
    return "kernel " + name_ + " takes " + std::to_string(scratch_bytes_) +
           " bytes of scratch by now, and this program has " + std::to_string(last_bytes) +
           ": compile it again (jax.clear_caches())";
  }
  for (int64_t n = 0; n < buffer_count; ++n) {
    if (reinterpret_cast<uintptr_t>(buffers[n]) % kAlignment != 0) {
      return "kernel " + name_ + " expects memory that is aligned to 16 bytes";
    }
  }
  const CudaDriver& driver = CudaDriver::Get();
  int device = 0;
  if (const CudaResult result = driver.GetDevice(&device); result != 0) {
    return driver.Describe("cuCtxGetDevice", result) + " for kernel " + name_;
  }
  std::vector<void*> arguments;
  for (CudaLaunch& launch : launches_) {
    // The driver reads what arguments point to before it returns.
    arguments.clear();
    for (const int64_t buffer : launch.buffers) {
      arguments.push_back(const_cast<void**>(&buffers[buffer]));
    }
    if (launch.takes_scratch) {
      arguments.push_back(const_cast<void**>(&buffers[buffer_count - 1]));
    }
    for (int32_t& counter : launch.counters) arguments.push_back(&counter);
    const CudaResult result =
        driver.Launch(handles_[device][launch.function], launch.blocks, 1, 1, launch.threads, 1, 1,
                      launch.shared_bytes, stream, arguments.data(), nullptr);
    if (result != 0) {
      return driver.Describe("cuLaunchKernel", result) + " for " + functions_[launch.function] +
             " of kernel " + name_;
    }
  }
  return "";
}

CudaPrograms& CudaPrograms::Get() {
  static CudaPrograms& programs = *new CudaPrograms;
  return programs;
}

void CudaPrograms::Set(std::string_view id, std::shared_ptr<CudaProgram> program) {
  Registry& registry = GetRegistry();
  const std::lock_guard<std::mutex> lock(registry.mutex);
  registry.programs[std::string(id)] = std::move(program);
}

std::shared_ptr<CudaProgram> CudaPrograms::Find(std::string_view id) {
  Registry& registry = GetRegistry();
  const std::lock_guard<std::mutex> lock(registry.mutex);
  const auto found = registry.programs.find(std::string(id));
  return found == registry.programs.end() ? nullptr : found->second;
}

}  // namespace mlc

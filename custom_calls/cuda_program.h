// What runs for a logical id on a GPU: machine code, and the launches that make up the kernel.
#ifndef HLO_MLC_CUDA_PROGRAM_H_
#define HLO_MLC_CUDA_PROGRAM_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "cuda_driver.h"

namespace mlc {

struct CudaLaunch {
  int64_t function;  // among the program's
  unsigned blocks, threads;
  unsigned shared_bytes;         // of a block, besides what the function itself declares
  std::vector<int64_t> buffers;  // positions among the call's operands and results
  bool takes_scratch;            // the last of the call's results
  std::vector<int32_t> counters;
};

class CudaProgram {
 public:
  // `plan`: of each launch its function, blocks, threads, bytes of shared memory, buffers (count
  // first), whether it takes scratch, and counters (count first). `scratch_bytes`: how much scratch
  // they take. Throws std::invalid_argument for any other numbers.
  CudaProgram(std::string name, std::string image, std::vector<std::string> functions,
              const int64_t* plan, int64_t plan_size, int64_t scratch_bytes);

  // Loads the machine code on the current device, if it is not there yet. Says what went wrong;
  // nothing did if that is empty.
  std::string Load();

  // Puts all launches on the stream, reading and writing `buffers`, of which the last one, with
  // `last_bytes`, is the scratch if they take any. Says what went wrong.
  std::string Launch(CudaStream stream, void* const* buffers, int64_t buffer_count,
                     int64_t last_bytes);

 private:
  static constexpr int kMostDevices = 64;

  std::string LoadOn(int device);

  std::string name_, image_;
  std::vector<std::string> functions_;
  std::vector<unsigned> shared_bytes_;  // that each function is launched with at most
  std::vector<CudaLaunch> launches_;
  int64_t most_buffers_ = 0, scratch_bytes_;
  bool takes_scratch_ = false;
  std::mutex loading_;
  // By device; each is written once, before its entry in `loaded_` becomes true.
  std::array<std::vector<CudaFunction>, kMostDevices> handles_;
  std::array<std::atomic<bool>, kMostDevices> loaded_{};
};

// The programs of this process, by logical id.
class CudaPrograms {
 public:
  static CudaPrograms& Get();
  void Set(std::string_view id, std::shared_ptr<CudaProgram> program);
  std::shared_ptr<CudaProgram> Find(std::string_view id);
};

}  // namespace mlc

#endif  // HLO_MLC_CUDA_PROGRAM_H_

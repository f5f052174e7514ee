"""GPU kernels: loop IR -> CUDA C++ and the launches that run it -> machine code through NVRTC."""

"""CPU kernels: loop IR -> LLVM IR text -> object code."""

/* The contract between generated kernels, the runtime library and its callers.
 *
 * Two parts: what a kernel sees (MlcContext, MlcEntry), and the C functions through which
 * a host program publishes, runs and profiles kernels. Everything is plain C, so that one
 * binary serves every Python version and any other host.
 */
#ifndef HLO_MLC_MLC_ABI_H_
#define HLO_MLC_MLC_ABI_H_

#include <stdint.h>

#if defined(_WIN32)
#define MLC_EXPORT __declspec(dllexport)
#else
#define MLC_EXPORT __attribute__((visibility("default")))
#endif

/* Raised with every incompatible change of this header. */
#define MLC_ABI_VERSION 6

#ifdef __cplusplus
extern "C" {
#endif

/* ---- What a kernel sees ----------------------------------------------------------------- */

typedef void (*MlcTask)(void* closure, int64_t task);
struct MlcCheckedKernel;

/* The execution a kernel runs in. Generated code relies on this layout.
 *
 * parallel_for calls body(closure, 0 .. count-1), each index once and in no particular order,
 * on the caller and on any threads of the pool that come to help, and returns when all are
 * done. It never waits for a task that nobody has started, so it may be nested. */
typedef struct MlcContext {
  void (*parallel_for)(struct MlcContext* context, MlcTask body, void* closure, int64_t count);
  int64_t thread_count; /* at least 1 */
  /* What the entry of a kernel with checks hands itself to; other kernels do not look at it. */
  void (*run_checked)(struct MlcContext* context, const struct MlcCheckedKernel* kernel,
                      void** buffers);
} MlcContext;

/* A kernel. `buffers` holds the operands, then the results, each aligned for its element type
 * (XLA aligns to 64 bytes, other callers may not); `scratch` is aligned to MLC_SCRATCH_ALIGNMENT,
 * belongs to this execution alone and holds anything. The floating-point environment, in tasks too:
 * round to nearest, subnormals flushed to zero (as XLA has it), no traps. */
typedef void (*MlcEntry)(MlcContext* context, void** buffers, void* scratch);

#define MLC_SCRATCH_ALIGNMENT 64

/* ---- What a kernel with checks says of itself -------------------------------------------- */

/* An access that is checked. `text` says what it is and what is expected of a number, which is put
 * in the place of "{}"; `computed` is the name of the buffer that it is made for. */
typedef struct MlcAccess {
  const char* text;
  const char* computed;
} MlcAccess;

/* The context of the body of a kernel with checks. `fault` reports a number that breaks a rule; it
 * does not return: the task that calls it, and with it the kernel, ends there. */
typedef struct MlcCheckedContext {
  MlcContext context;
  void (*fault)(struct MlcCheckedContext* context, const MlcAccess* access, int64_t number);
} MlcCheckedContext;

/* An operand or a result. `poison` is what an element of a result holds before it is written. */
typedef struct MlcCheckedBuffer {
  const char* name;
  int64_t elements;
  int64_t element_bytes;
  uint64_t poison;
} MlcCheckedBuffer;

typedef struct MlcCheckedKernel {
  MlcEntry body; /* to be called with an MlcCheckedContext */
  const char* name;
  int64_t scratch_bytes;
  int64_t operand_count;
  int64_t result_count;
  const MlcCheckedBuffer* buffers; /* the operands, then the results */
} MlcCheckedKernel;

/* ---- What a host program calls ----------------------------------------------------------
 *
 * Functions that return int return 1 for yes or done, 0 for no or not found, and -1 when memory
 * ran out. All are safe to call from any thread at any time. */

MLC_EXPORT int64_t mlc_abi_version(void);

/* Machine code in memory. mlc_code_reserve gives pages of their own for so many bytes (NULL when
 * memory or the system's memory maps ran out), so that code can be linked for where it will lie;
 * mlc_code_publish copies it there, once, and makes it executable; mlc_code_release gives the pages
 * back, published or not. A released page may be mapped as long as the process lives. */
MLC_EXPORT void* mlc_code_reserve(int64_t bytes);
MLC_EXPORT int mlc_code_publish(void* pages, const void* code, int64_t bytes);
MLC_EXPORT void mlc_code_release(void* pages);

/* Makes `entry` the code behind `id`, for executables still to be loaded and for those already
 * loaded. The code must stay mapped until mlc_variant_remove_unused says that nobody holds it: an
 * execution that began with it may still be running. */
MLC_EXPORT int mlc_variant_set(const char* id, MlcEntry entry, int64_t scratch_bytes);

/* The same for code that there is none of yet. mlc_variant_promise lets executables that call `id`
 * be loaded, and their executions wait; mlc_variant_keep makes `entry` the code behind it, cannot
 * fail, and is to be called once for every promise (which is NULL when memory ran out). What
 * `may_fail` has failed, and with it the execution, unless it says otherwise: mlc_failed_by with an
 * empty text. With NULL as `entry` every execution fails. */
MLC_EXPORT void* mlc_variant_promise(const char* id, int64_t scratch_bytes);
MLC_EXPORT void mlc_variant_keep(void* promise, MlcEntry entry, int may_fail);

/* Says what the kernel that is being run failed by; from the thread that its entry is called on. */
MLC_EXPORT int mlc_failed_by(MlcContext* context, const char* text);

MLC_EXPORT int mlc_variant_exists(const char* id);

/* Forgets `id`: executables loaded from now on do not find it; those already loaded keep it. */
MLC_EXPORT int mlc_variant_remove(const char* id);

/* Forgets `id` if no executable holds it. 1: there is none that does, and none will find it, so
 * that whatever was published as `id` may be unmapped; 0: some executable still calls it. */
MLC_EXPORT int mlc_variant_remove_unused(const char* id);

/* Says for what lines of the user's program a kernel stands, for the errors of kernels with checks.
 * Each line of `lines` is the name of a buffer, a tab, and where what it holds is computed; the one
 * without a name is for all others. */
MLC_EXPORT int mlc_variant_describe(const char* id, const char* lines);

/* Calls and total wall time of each id, counted while profiling is enabled. */
MLC_EXPORT void mlc_profile_enable(int enabled);
MLC_EXPORT int mlc_profile_read(const char* id, int64_t* calls, int64_t* nanoseconds);
MLC_EXPORT void mlc_profile_reset(void);

/* Runs a kernel without XLA, on this library's own threads (the caller and at most
 * thread_count - 1 others), under the same rules as inside an XLA program. 0 if it has checks and
 * one of them failed: mlc_fault says which, until the calling thread runs another kernel. */
MLC_EXPORT int mlc_run(MlcEntry entry, void** buffers, int64_t scratch_bytes, int64_t thread_count);
MLC_EXPORT const char* mlc_fault(void);

/* ---- Traces: when kernels ran, and on which threads --------------------------------------- */

#define MLC_WHOLE_KERNEL (-1)

/* From when to when, in nanoseconds of the clock that does not jump (CLOCK_MONOTONIC), a kernel or
 * one of its tasks ran. */
typedef struct MlcSpan {
  int64_t begin_ns;
  int64_t end_ns;
  int64_t kernel; /* its number in the trace: see mlc_trace_kernel */
  int64_t task;   /* MLC_WHOLE_KERNEL for the kernel itself */
} MlcSpan;

/* What one thread ran, in the order in which it ended. */
typedef struct MlcLane {
  int64_t thread; /* as the system numbers them */
  const MlcSpan* spans;
  int64_t count;
  int64_t lost; /* spans for which there was no room */
} MlcLane;

/* Begins to record all kernels inside XLA programs, with so many spans of each thread at most; NULL
 * while another trace is being recorded, or when memory ran out. Every trace is to be ended, and
 * then released. Executions that began before its end may add to it until it is released. */
MLC_EXPORT void* mlc_trace_begin(int64_t spans_per_thread);
MLC_EXPORT void mlc_trace_end(void* trace);
MLC_EXPORT void mlc_trace_release(void* trace);

/* What was recorded by now: the lanes and ids of the kernels, numbered from 0. 0, or NULL, where
 * there is none of that number. */
MLC_EXPORT int mlc_trace_lane(const void* trace, int64_t number, MlcLane* lane);
MLC_EXPORT const char* mlc_trace_kernel(const void* trace, int64_t number);

/* ---- Kernels for NVIDIA GPUs ------------------------------------------------------------- */

/* Makes machine code (a cubin) with these functions, and a sequence of launches of them, what runs
 * for `id` on GPUs. `plan` has for each launch: the function's number, blocks, threads, bytes of
 * shared memory besides what the function declares, the number of buffers and their positions among
 * the call's operands and results, 1 if it takes scratch (the call's last result, of `scratch_bytes`
 * at least) or 0, the number of counters and their values. 0 if the plan is malformed. */
MLC_EXPORT int mlc_cuda_set(const char* id, const char* image, int64_t image_bytes,
                            const char* const* functions, int64_t function_count,
                            const int64_t* plan, int64_t plan_size, int64_t scratch_bytes);

/* Puts another library in the place of NVIDIA's driver, for tests; only before its first use. */
MLC_EXPORT void mlc_cuda_use_driver(const char* path);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* HLO_MLC_MLC_ABI_H_ */

// Device functions that kernels use: each one, with the comment above it, is copied into the
// kernels that call it.  Chunks are separated by empty lines and named by what they define.

// `count` values that are loaded and stored at once.
template <class T, int count>
struct alignas(sizeof(T) * count) Vector {
  T at[count];
};
template <int count, class T>
__device__ inline Vector<T, count> mlc_load(const T* source) {
  return *reinterpret_cast<const Vector<T, count>*>(source);
}
template <int count, class T>
__device__ inline void mlc_store(T* target, const Vector<T, count>& values) {
  *reinterpret_cast<Vector<T, count>*>(target) = values;
}

// Copies from memory to shared memory, which are under way until they are waited for.
template <int bytes, class T>
__device__ inline void mlc_copy(T* to, const T* from) {
#ifdef MLC_EMULATED
  emulated::copy(to, from, bytes);
#else
  const unsigned shared = (unsigned)__cvta_generic_to_shared(to);
  if (bytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(shared), "l"(from) : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;"
                 :: "r"(shared), "l"(from), "n"(bytes) : "memory");
  }
#endif
}
__device__ inline void mlc_wait_for_copies() {
#ifdef MLC_EMULATED
  emulated::wait_for_copies();
#else
  asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}

// The larger value; NaN if one is NaN; -0 is less than +0.
__device__ inline float mlc_max(float x, float y) {
#ifdef MLC_EMULATED
  return x != x ? x : y != y ? y : x == y ? (__float_as_int(x) < 0 ? y : x) : x > y ? x : y;
#else
  float result;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(x), "f"(y));
  return result;
#endif
}
__device__ inline double mlc_max(double x, double y) {
  return x != x ? x : y != y ? y : x == y ? (__double_as_longlong(x) < 0 ? y : x) : x > y ? x : y;
}

// The smaller value; NaN if one is NaN; -0 is less than +0.
__device__ inline float mlc_min(float x, float y) {
#ifdef MLC_EMULATED
  return x != x ? x : y != y ? y : x == y ? (__float_as_int(x) < 0 ? x : y) : x < y ? x : y;
#else
  float result;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(x), "f"(y));
  return result;
#endif
}
__device__ inline double mlc_min(double x, double y) {
  return x != x ? x : y != y ? y : x == y ? (__double_as_longlong(x) < 0 ? x : y) : x < y ? x : y;
}

// f16 by its bits as f32, exactly.
__device__ inline float mlc_from_f16(unsigned short x) {
#ifdef MLC_EMULATED
  return emulated::from_f16(x);
#else
  float result;
  asm("cvt.f32.f16 %0, %1;" : "=f"(result) : "h"(x));
  return result;
#endif
}

// The bits of f32 as f16, rounded to nearest, ties to even.
__device__ inline unsigned short mlc_to_f16(float x) {
#ifdef MLC_EMULATED
  return emulated::to_f16(x);
#else
  unsigned pair;  // one alone is converted at a fourth of the rate
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(0.f), "f"(x));
  return (unsigned short)pair;
#endif
}

// bf16 by its bits as f32, exactly.
__device__ inline float mlc_from_bf16(unsigned short x) {
  return __int_as_float((unsigned)x << 16);
}

// The bits of f32 as bf16, rounded to nearest, ties to even.
__device__ inline unsigned short mlc_to_bf16(float x) {
#ifdef MLC_EMULATED
  unsigned bits = __float_as_uint(x);
  if (x != x) return 0x7fff;
  return (unsigned short)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
#else
  unsigned pair;  // one alone is converted at a fourth of the rate
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(0.f), "f"(x));
  return (unsigned short)pair;
#endif
}

// Arithmetic on f16 by their bits, rounded once.
#ifndef MLC_EMULATED
__device__ inline unsigned short mlc_add_f16(unsigned short x, unsigned short y) {
  asm("add.rn.f16 %0, %0, %1;" : "+h"(x) : "h"(y));
  return x;
}
__device__ inline unsigned short mlc_sub_f16(unsigned short x, unsigned short y) {
  asm("sub.rn.f16 %0, %0, %1;" : "+h"(x) : "h"(y));
  return x;
}
__device__ inline unsigned short mlc_mul_f16(unsigned short x, unsigned short y) {
  asm("mul.rn.f16 %0, %0, %1;" : "+h"(x) : "h"(y));
  return x;
}
#endif

// Arithmetic on bf16 by their bits, rounded once: x * 1 + y, y * -1 + x, x * y - 0 run on sm_80.
#ifndef MLC_EMULATED
__device__ inline unsigned short mlc_add_bf16(unsigned short x, unsigned short y) {
  asm("fma.rn.bf16 %0, %0, %2, %1;" : "+h"(x) : "h"(y), "h"((unsigned short)0x3f80));
  return x;
}
__device__ inline unsigned short mlc_sub_bf16(unsigned short x, unsigned short y) {
  asm("fma.rn.bf16 %0, %1, %2, %0;" : "+h"(x) : "h"(y), "h"((unsigned short)0xbf80));
  return x;
}
__device__ inline unsigned short mlc_mul_bf16(unsigned short x, unsigned short y) {
  asm("fma.rn.bf16 %0, %0, %1, %2;" : "+h"(x) : "h"(y), "h"((unsigned short)0x8000));
  return x;
}
#endif

// The quotient of two bf16, rounded to nearest: one of f32 that is 2 ulp off is right after that.
#ifndef MLC_EMULATED
__device__ inline unsigned short mlc_div_bf16(unsigned short x, unsigned short y) {
  float quotient = __int_as_float((unsigned)x << 16);
  asm("div.full.f32 %0, %0, %1;" : "+f"(quotient) : "f"(__int_as_float((unsigned)y << 16)));
  unsigned pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(0.f), "f"(quotient));
  return (unsigned short)pair;
}
#endif

// The quotient of two f16, rounded to nearest: one of f32, whose rest is divided once more, is.
#ifndef MLC_EMULATED
__device__ inline unsigned short mlc_div_f16(unsigned short x, unsigned short y) {
  float above, below, inverse;
  asm("cvt.f32.f16 %0, %1;" : "=f"(above) : "h"(x));
  asm("cvt.f32.f16 %0, %1;" : "=f"(below) : "h"(y));
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(below));
  const float quotient = above * inverse, rest = __fmaf_rn(-quotient, below, above);
  unsigned pair;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(0.f),
      "f"(rest == rest ? __fmaf_rn(rest, inverse, quotient) : quotient));
  return (unsigned short)pair;
}
#endif

// The larger and the smaller of two f16, as of f32; of a number and NaN, `larger` is the number.
#ifndef MLC_EMULATED
__device__ inline unsigned short mlc_max_f16(unsigned short x, unsigned short y) {
  asm("max.NaN.f16 %0, %0, %1;" : "+h"(x) : "h"(y));
  return x;
}
__device__ inline unsigned short mlc_min_f16(unsigned short x, unsigned short y) {
  asm("min.NaN.f16 %0, %0, %1;" : "+h"(x) : "h"(y));
  return x;
}
__device__ inline unsigned short mlc_larger_f16(unsigned short x, unsigned short y) {
  asm("max.f16 %0, %0, %1;" : "+h"(x) : "h"(y));
  return x;
}
#endif

// The larger and the smaller of two bf16, as of f32; of a number and NaN, `larger` is the number.
#ifndef MLC_EMULATED
__device__ inline unsigned short mlc_max_bf16(unsigned short x, unsigned short y) {
  asm("max.NaN.bf16 %0, %0, %1;" : "+h"(x) : "h"(y));
  return x;
}
__device__ inline unsigned short mlc_min_bf16(unsigned short x, unsigned short y) {
  asm("min.NaN.bf16 %0, %0, %1;" : "+h"(x) : "h"(y));
  return x;
}
__device__ inline unsigned short mlc_larger_bf16(unsigned short x, unsigned short y) {
  asm("max.bf16 %0, %0, %1;" : "+h"(x) : "h"(y));
  return x;
}
#endif

// Whether a number is neither infinite nor NaN.
__device__ inline bool mlc_is_finite(float x) {
  return (__float_as_uint(x) & 0x7fffffffu) < 0x7f800000u;
}
__device__ inline bool mlc_is_finite(double x) {
  return (__double_as_longlong(x) & 0x7fffffffffffffffll) < 0x7ff0000000000000ll;
}

// A float as an integer from lowest to highest: the nearest one if it is beyond, 0 for NaN.
template <class To, class From>
__device__ inline To mlc_saturate(From x, To lowest, To highest) {
  if (x != x) return 0;
  return x <= (From)lowest ? lowest : x >= (From)highest ? highest : (To)x;
}

// `x` (unsigned) moved to the left; by its width or more nothing is left.
template <class T, class Unsigned>
__device__ inline T mlc_shift_left(T x, Unsigned amount) {
  return amount < 8 * sizeof(T) ? (T)((Unsigned)x << amount) : (T)0;
}

// `x` (unsigned) moved to the right.
template <class T, class Unsigned>
__device__ inline T mlc_shift_right_logical(T x, Unsigned amount) {
  return amount < 8 * sizeof(T) ? (T)((Unsigned)x >> amount) : (T)0;
}

// `x` (signed) moved to the right; by its width or more its sign is left.
template <class T, class Unsigned>
__device__ inline T mlc_shift_right_arithmetic(T x, Unsigned amount) {
  return (T)(x >> (amount < 8 * sizeof(T) ? (int)amount : 8 * (int)sizeof(T) - 1));
}

// Integer division toward zero: x / 0 is -1, the lowest integer / -1 is itself.
template <class T>
__device__ inline T mlc_divide(T x, T y) {
  if (y == 0) return (T)-1;
  if ((T)-1 < (T)0 && y == (T)-1) return (T)(0ull - (unsigned long long)x);
  return (T)(x / y);
}

// What integer division leaves: x for y = 0, 0 for y = -1.
template <class T>
__device__ inline T mlc_remainder(T x, T y) {
  if (y == 0) return x;
  if ((T)-1 < (T)0 && y == (T)-1) return 0;
  return (T)(x % y);
}

// Division rounded toward minus infinity, by a positive number.
template <class T>
__device__ inline T mlc_floor_divide(T x, T y) {
  return x >= 0 ? x / y : -((-x + y - 1) / y);
}

// x modulo a positive number, from 0 on.
template <class T>
__device__ inline T mlc_floor_modulo(T x, T y) {
  T rest = x % y;
  return rest < 0 ? rest + y : rest;
}

// A square of 16 x 16 elements of 16 bits in shared memory, `stride` apart from row to row, as the
// left factor of a warp's product; or 8 rows of it, as the right factor, column by column.
__device__ inline void mlc_load_matrices(unsigned (&to)[4], const unsigned short* from,
                                         int stride) {
  const int lane = threadIdx.x % 32;
  const unsigned short* row = from + lane % 16 * stride + lane / 16 * 8;
#ifdef MLC_EMULATED
  emulated::load_matrices(to, row, false);
#else
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"((unsigned)__cvta_generic_to_shared(row)) : "memory");
#endif
}
__device__ inline void mlc_load_matrices(unsigned (&to)[2], const unsigned short* from,
                                         int stride) {
  const int lane = threadIdx.x % 16;
  const unsigned short* row = from + lane % 8 * stride + lane / 8 * 8;
#ifdef MLC_EMULATED
  emulated::load_matrices(to, row, false);
#else
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
               : "=r"(to[0]), "=r"(to[1])
               : "r"((unsigned)__cvta_generic_to_shared(row)) : "memory");
#endif
}

// The same where it is the depth that goes from row to row.
__device__ inline void mlc_load_matrices_transposed(unsigned (&to)[4], const unsigned short* from,
                                                    int stride) {
  const int lane = threadIdx.x % 32;
  const unsigned short* row = from + (lane % 8 + lane / 16 * 8) * stride + lane / 8 % 2 * 8;
#ifdef MLC_EMULATED
  emulated::load_matrices(to, row, true);
#else
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"((unsigned)__cvta_generic_to_shared(row)) : "memory");
#endif
}
__device__ inline void mlc_load_matrices_transposed(unsigned (&to)[2], const unsigned short* from,
                                                    int stride) {
  const unsigned short* row = from + threadIdx.x % 16 * stride;
#ifdef MLC_EMULATED
  emulated::load_matrices(to, row, true);
#else
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
               : "=r"(to[0]), "=r"(to[1])
               : "r"((unsigned)__cvta_generic_to_shared(row)) : "memory");
#endif
}

// A lane's elements of a factor in f32: 16 rows, or 8 columns, `step` elements apart, by 8 in the
// depth, `along` apart.
__device__ inline void mlc_load_elements(unsigned (&to)[4], const float* from, int step,
                                         int along) {
  const int lane = threadIdx.x % 32;
  const float* own = from + lane / 4 * step + lane % 4 * along;
  to[0] = __float_as_uint(own[0]);
  to[1] = __float_as_uint(own[8 * step]);
  to[2] = __float_as_uint(own[4 * along]);
  to[3] = __float_as_uint(own[8 * step + 4 * along]);
}
__device__ inline void mlc_load_elements(unsigned (&to)[2], const float* from, int step,
                                         int along) {
  const int lane = threadIdx.x % 32;
  const float* own = from + lane / 4 * step + lane % 4 * along;
  to[0] = __float_as_uint(own[0]);
  to[1] = __float_as_uint(own[4 * along]);
}

// sums += lhs * rhs, of bf16: 16 rows by 8 columns of f32, 16 products each.
__device__ inline void mlc_multiply_bf16(float* sums, const unsigned (&lhs)[4],
                                         const unsigned (&rhs)[2]) {
#ifdef MLC_EMULATED
  emulated::multiply<16>(sums, lhs, rhs, [](unsigned bits) { return __int_as_float(bits << 16); });
#else
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, "
               "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
               : "r"(lhs[0]), "r"(lhs[1]), "r"(lhs[2]), "r"(lhs[3]), "r"(rhs[0]), "r"(rhs[1]));
#endif
}

// sums += lhs * rhs, of f16: 16 rows by 8 columns of f32, 16 products each.
__device__ inline void mlc_multiply_f16(float* sums, const unsigned (&lhs)[4],
                                        const unsigned (&rhs)[2]) {
#ifdef MLC_EMULATED
  emulated::multiply<16>(sums, lhs, rhs, [](unsigned bits) { return emulated::from_f16(bits); });
#else
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, "
               "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
               : "r"(lhs[0]), "r"(lhs[1]), "r"(lhs[2]), "r"(lhs[3]), "r"(rhs[0]), "r"(rhs[1]));
#endif
}

// sums += lhs * rhs, of tf32: 16 rows by 8 columns of f32, 8 products each.
__device__ inline void mlc_multiply_tf32(float* sums, const unsigned (&lhs)[4],
                                         const unsigned (&rhs)[2]) {
#ifdef MLC_EMULATED
  emulated::multiply<32>(sums, lhs, rhs, [](unsigned bits) { return __int_as_float(bits); });
#else
  asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, "
               "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
               : "r"(lhs[0]), "r"(lhs[1]), "r"(lhs[2]), "r"(lhs[3]), "r"(rhs[0]), "r"(rhs[1]));
#endif
}

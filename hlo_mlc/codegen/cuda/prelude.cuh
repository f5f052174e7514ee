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
  unsigned short result;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(result) : "f"(x));
  return result;
#endif
}

// bf16 by its bits as f32, exactly.
__device__ inline float mlc_from_bf16(unsigned short x) {
  return __int_as_float((unsigned)x << 16);
}

// The bits of f32 as bf16, rounded to nearest, ties to even.
__device__ inline unsigned short mlc_to_bf16(float x) {
  unsigned bits = __float_as_uint(x);
  if (x != x) return (unsigned short)(bits >> 16 | 0x40);
  return (unsigned short)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

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

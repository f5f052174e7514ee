// The device functions that generated code uses, and the instructions behind those of its prelude.
// Part of emulator.h.

#pragma once

namespace emulated {

// What all threads of this one's warp hand to each other, by lane; read before the next exchange
// but one.
template <class T>
const unsigned char (*exchange(const T& value))[sizeof Warp::values[0][0]] {
  static_assert(sizeof value <= sizeof Warp::values[0][0]);
  const unsigned thread = current, turn = threads[thread].operations++ % 2;
  Warp& warp = warps[thread / kWarp];
  memcpy(warp.values[turn][thread % kWarp], &value, sizeof value);
  wait(Waiting::kShuffle);
  return warp.values[turn];
}

// cp.async: what is copied arrives when the thread waits for it, and not before.
inline void copy(void* to, const void* from, size_t bytes) {
  if ((reinterpret_cast<uintptr_t>(to) | reinterpret_cast<uintptr_t>(from)) % bytes != 0) {
    fault = "a copy is not aligned";
  }
  threads[current].copies.push_back({to, from, bytes});
}
inline void wait_for_copies() {
  for (const PendingCopy& each : threads[current].copies) memcpy(each.to, each.from, each.bytes);
  threads[current].copies.clear();
}

// ldmatrix: `row` of lane 8 j + i is row i of the j-th matrix of 8 x 8.
template <int count>
void load_matrices(unsigned (&to)[count], const unsigned short* row, bool transposed) {
  if (reinterpret_cast<uintptr_t>(row) % 16 != 0) fault = "a row of a matrix is not aligned";
  const auto* rows = exchange(row);
  const unsigned lane = current % kWarp;
  for (int j = 0; j < count; ++j) {
    unsigned short pair[2];
    for (int n = 0; n < 2; ++n) {
      const unsigned r = transposed ? lane % 4 * 2 + n : lane / 4;
      const unsigned short* from;
      memcpy(&from, rows[8 * j + r], sizeof from);
      pair[n] = from[transposed ? lane / 4 : lane % 4 * 2 + n];
    }
    to[j] = pair[0] | static_cast<unsigned>(pair[1]) << 16;
  }
}

// mma.sync.m16n8, of elements of `bits` bits: 256 bits of a row of lhs and of a column of rhs.
template <unsigned bits, class Value>
void multiply(float* sums, const unsigned (&lhs)[4], const unsigned (&rhs)[2], Value value) {
  struct Factors {
    unsigned lhs[4], rhs[2];
  } mine;
  memcpy(mine.lhs, lhs, sizeof mine.lhs);
  memcpy(mine.rhs, rhs, sizeof mine.rhs);
  const auto* all = exchange(mine);
  const unsigned lane = current % kWarp;
  constexpr unsigned in_word = 32 / bits, half = 4 * in_word;  // elements of a row in 4 lanes
  for (unsigned e = 0; e < 4; ++e) {
    const unsigned row = lane / 4 + 8 * (e / 2), column = lane % 4 * 2 + e % 2;
    float sum = sums[e];
    for (unsigned k = 0; k < 2 * half; ++k) {
      Factors left, right;
      memcpy(&left, all[row % 8 * 4 + k % half / in_word], sizeof left);
      memcpy(&right, all[column * 4 + k % half / in_word], sizeof right);
      const unsigned shift = k % in_word * bits, mask = ~0u >> (32 - bits);
      const float x = value(left.lhs[row / 8 + 2 * (k / half)] >> shift & mask);
      const float y = value(right.rhs[k / half] >> shift & mask);
      sum = fmaf(x, y, sum);
    }
    sums[e] = sum;
  }
}

inline float from_f16(unsigned short bits) {
  _Float16 half;
  memcpy(&half, &bits, sizeof half);
  return static_cast<float>(half);
}
inline unsigned short to_f16(float x) {
  const _Float16 half = static_cast<_Float16>(x);
  unsigned short bits;
  memcpy(&bits, &half, sizeof bits);
  return bits;
}

inline float from_bf16(unsigned short bits) { return __builtin_bit_cast(float, bits << 16); }
inline unsigned short to_bf16(float x) {
  const unsigned bits = __builtin_bit_cast(unsigned, x);
  return x != x ? 0x7fff : static_cast<unsigned short>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
template <class Function>
inline unsigned short on_f16(unsigned short x, unsigned short y, Function function) {
  return to_f16(function(from_f16(x), from_f16(y)));
}
template <class Function>
inline unsigned short on_bf16(unsigned short x, unsigned short y, Function function) {
  return to_bf16(function(from_bf16(x), from_bf16(y)));
}
inline float larger(float x, float y) {
  if (x != x || y != y) return x + y;
  return x == y ? (__builtin_signbit(x) ? y : x) : x > y ? x : y;
}
inline float smaller(float x, float y) { return -larger(-x, -y); }

template <class To, class From>
inline To as(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  memcpy(&to, &from, sizeof to);
  return to;
}

}  // namespace emulated

// The arithmetic on narrow floats that the prelude has instructions for.
inline unsigned short mlc_add_f16(unsigned short x, unsigned short y) {
  return emulated::on_f16(x, y, std::plus<float>());
}
inline unsigned short mlc_sub_f16(unsigned short x, unsigned short y) {
  return emulated::on_f16(x, y, std::minus<float>());
}
inline unsigned short mlc_mul_f16(unsigned short x, unsigned short y) {
  return emulated::on_f16(x, y, std::multiplies<float>());
}
inline unsigned short mlc_div_f16(unsigned short x, unsigned short y) {
  return emulated::on_f16(x, y, std::divides<float>());
}
inline unsigned short mlc_max_f16(unsigned short x, unsigned short y) {
  return emulated::on_f16(x, y, emulated::larger);
}
inline unsigned short mlc_min_f16(unsigned short x, unsigned short y) {
  return emulated::on_f16(x, y, emulated::smaller);
}
inline unsigned short mlc_larger_f16(unsigned short x, unsigned short y) {
  return emulated::on_f16(x, y, fmaxf);
}
inline unsigned short mlc_add_bf16(unsigned short x, unsigned short y) {
  return emulated::on_bf16(x, y, std::plus<float>());
}
inline unsigned short mlc_sub_bf16(unsigned short x, unsigned short y) {
  return emulated::on_bf16(x, y, std::minus<float>());
}
inline unsigned short mlc_mul_bf16(unsigned short x, unsigned short y) {
  return emulated::on_bf16(x, y, std::multiplies<float>());
}
inline unsigned short mlc_max_bf16(unsigned short x, unsigned short y) {
  return emulated::on_bf16(x, y, emulated::larger);
}
inline unsigned short mlc_min_bf16(unsigned short x, unsigned short y) {
  return emulated::on_bf16(x, y, emulated::smaller);
}
inline unsigned short mlc_larger_bf16(unsigned short x, unsigned short y) {
  return emulated::on_bf16(x, y, fmaxf);
}
inline unsigned short mlc_div_bf16(unsigned short x, unsigned short y) {
  return emulated::on_bf16(x, y, std::divides<float>());
}

inline void __syncthreads() { emulated::wait(emulated::Waiting::kBlock); }
inline void __syncwarp() { emulated::wait(emulated::Waiting::kWarp); }

template <class T>
inline T __shfl_down_sync(unsigned, T value, unsigned distance, int width) {
  const auto* all = emulated::exchange(value);
  const unsigned lane = emulated::current % emulated::kWarp;
  const bool inside = lane % width + distance < static_cast<unsigned>(width);
  memcpy(&value, all[inside ? lane + distance : lane], sizeof value);
  return value;
}

// Threads run one at a time: nothing comes between.
template <class T, class Update>
inline T emulated_atomic(T* place, Update update) {
  const T old = *place;
  *place = update(old);
  return old;
}
template <class T>
inline T atomicAdd(T* place, T x) {
  return emulated_atomic(place, [x](T old) { return static_cast<T>(old + x); });
}
template <class T>
inline T atomicMin(T* place, T x) {
  return emulated_atomic(place, [x](T old) { return x < old ? x : old; });
}
template <class T>
inline T atomicMax(T* place, T x) {
  return emulated_atomic(place, [x](T old) { return old < x ? x : old; });
}
template <class T>
inline T atomicAnd(T* place, T x) {
  return emulated_atomic(place, [x](T old) { return static_cast<T>(old & x); });
}
template <class T>
inline T atomicOr(T* place, T x) {
  return emulated_atomic(place, [x](T old) { return static_cast<T>(old | x); });
}
template <class T>
inline T atomicXor(T* place, T x) {
  return emulated_atomic(place, [x](T old) { return static_cast<T>(old ^ x); });
}
template <class T>
inline T atomicCAS(T* place, T expected, T x) {
  return emulated_atomic(place, [=](T old) { return old == expected ? x : old; });
}

template <class T>
inline T min(T x, T y) { return y < x ? y : x; }
template <class T>
inline T max(T x, T y) { return x < y ? y : x; }
// Not inlined: GCC would negate operands in place of the result, whose zero has another sign then.
[[gnu::noinline]] inline float __fmaf_rn(float x, float y, float z) { return fmaf(x, y, z); }
[[gnu::noinline]] inline double emulated_fma(double x, double y, double z) { return fma(x, y, z); }
#define fma emulated_fma
inline float __fsqrt_rn(float x) { return sqrtf(x); }
inline int __float_as_int(float x) { return emulated::as<int>(x); }
inline unsigned __float_as_uint(float x) { return emulated::as<unsigned>(x); }
inline float __int_as_float(int x) { return emulated::as<float>(x); }
inline float __uint_as_float(unsigned x) { return emulated::as<float>(x); }
inline long long __double_as_longlong(double x) { return emulated::as<long long>(x); }
inline double __longlong_as_double(long long x) { return emulated::as<double>(x); }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __clz(int x) { return x == 0 ? 32 : __builtin_clz(x); }
inline int __clzll(long long x) { return x == 0 ? 64 : __builtin_clzll(x); }
inline unsigned __umulhi(unsigned x, unsigned y) {
  return static_cast<unsigned>(static_cast<unsigned long long>(x) * y >> 32);
}
inline unsigned long long __umul64hi(unsigned long long x, unsigned long long y) {
  return static_cast<unsigned long long>(static_cast<unsigned __int128>(x) * y >> 64);
}

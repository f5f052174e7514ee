/* Functions that kernels use: each one, with the comment above it, is copied into the files that
 * call it.  Chunks are separated by empty lines. */

/* The larger value; NaN if one is NaN; -0 is less than +0. */
static inline float mlc_max_f32(float x, float y) {
  return x != x ? x : y != y ? y : x == y ? (signbit(x) ? y : x) : x > y ? x : y;
}

static inline double mlc_max_f64(double x, double y) {
  return x != x ? x : y != y ? y : x == y ? (signbit(x) ? y : x) : x > y ? x : y;
}

/* The smaller value; NaN if one is NaN; -0 is less than +0. */
static inline float mlc_min_f32(float x, float y) {
  return x != x ? x : y != y ? y : x == y ? (signbit(x) ? x : y) : x < y ? x : y;
}

static inline double mlc_min_f64(double x, double y) {
  return x != x ? x : y != y ? y : x == y ? (signbit(x) ? x : y) : x < y ? x : y;
}

/* x * y + z: rounded once where the machine has an instruction for it. */
static inline float mlc_multiply_add_f32(float x, float y, float z) {
#ifdef FP_FAST_FMAF
  return fmaf(x, y, z);
#else
  return x * y + z;
#endif
}

static inline double mlc_multiply_add_f64(double x, double y, double z) {
#ifdef FP_FAST_FMA
  return fma(x, y, z);
#else
  return x * y + z;
#endif
}

/* A float by its bits. */
static inline float mlc_f32_of_bits(uint32_t bits) {
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

static inline double mlc_f64_of_bits(uint64_t bits) {
  double x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

/* The bits of a float. */
static inline uint32_t mlc_bits_of_f32(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  return bits;
}

static inline uint64_t mlc_bits_of_f64(double x) {
  uint64_t bits;
  memcpy(&bits, &x, sizeof bits);
  return bits;
}

/* f16 by its bits as f32, exactly. */
static inline float mlc_from_f16(uint16_t x) {
  const uint32_t sign = (uint32_t)(x & 0x8000) << 16, magnitude = x & 0x7fff;
  if (magnitude < 0x400) {  /* a multiple of 2^-24 */
    const float small = (float)magnitude * 0x1p-24f;
    return sign ? -small : small;
  }
  const uint32_t rebiased = (magnitude << 13) + (magnitude < 0x7c00 ? 112u << 23 : 224u << 23);
  const uint32_t quiet = magnitude > 0x7c00 ? 0x400000u : 0u;
  return mlc_f32_of_bits(sign | rebiased | quiet);
}

/* The bits of f32 as f16, rounded to nearest, ties to even. */
static inline uint16_t mlc_to_f16(float x) {
  const uint32_t bits = mlc_bits_of_f32(x), magnitude = bits & 0x7fffffff;
  const uint32_t sign = bits >> 16 & 0x8000;
  if (magnitude > 0x7f800000) return (uint16_t)(sign | 0x7e00 | (magnitude >> 13 & 0x3ff));
  if (magnitude >= 0x477ff000) return (uint16_t)(sign | 0x7c00);  /* 65520 rounds to infinity */
  if (magnitude < 0x38800000) {  /* below 2^-14: adding 0.5 leaves multiples of 2^-24 */
    const float shifted = mlc_f32_of_bits(magnitude) + 0.5f;
    return (uint16_t)(sign | (mlc_bits_of_f32(shifted) - 0x3f000000));
  }
  return (uint16_t)(sign | (magnitude - (112u << 23) + 0xfff + (magnitude >> 13 & 1)) >> 13);
}

/* bf16 by its bits as f32, exactly. */
static inline float mlc_from_bf16(uint16_t x) {
  return mlc_f32_of_bits((uint32_t)x << 16);
}

/* The bits of f32 as bf16, rounded to nearest, ties to even. */
static inline uint16_t mlc_to_bf16(float x) {
  const uint32_t bits = mlc_bits_of_f32(x);
  if (x != x) return (uint16_t)(bits >> 16 | 0x40);
  return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* A float as an integer from lowest to highest: the nearest one if it is beyond, 0 for NaN. */
static inline int64_t mlc_saturate_signed(double x, int64_t lowest, int64_t highest) {
  if (x != x) return 0;
  return x <= (double)lowest ? lowest : x >= (double)highest ? highest : (int64_t)x;
}

static inline uint64_t mlc_saturate_unsigned(double x, uint64_t highest) {
  if (!(x > 0)) return 0;
  return x >= (double)highest ? highest : (uint64_t)x;
}

/* A number of so many bits moved to the left; by its width or more nothing is left. */
static inline uint64_t mlc_shift_left(uint64_t x, uint64_t amount, unsigned bits) {
  return amount < bits ? x << amount : 0;
}

/* A number of so many bits moved to the right. */
static inline uint64_t mlc_shift_right_logical(uint64_t x, uint64_t amount, unsigned bits) {
  return amount < bits ? x >> amount : 0;
}

/* The same of a signed number; by its width or more its sign is left. */
static inline int64_t mlc_shift_right_arithmetic(int64_t x, uint64_t amount, unsigned bits) {
  return x >> (amount < bits ? amount : bits - 1);
}

/* Integer division toward zero: x / 0 is -1, the lowest integer / -1 is itself. */
static inline int64_t mlc_divide_signed(int64_t x, int64_t y) {
  if (y == 0) return -1;
  return y == -1 ? (int64_t)(0 - (uint64_t)x) : x / y;
}

static inline uint64_t mlc_divide_unsigned(uint64_t x, uint64_t y) {
  return y == 0 ? UINT64_MAX : x / y;
}

/* What integer division leaves: x for y = 0, 0 for y = -1. */
static inline int64_t mlc_remainder_signed(int64_t x, int64_t y) {
  if (y == 0) return x;
  return y == -1 ? 0 : x % y;
}

static inline uint64_t mlc_remainder_unsigned(uint64_t x, uint64_t y) {
  return y == 0 ? x : x % y;
}

/* The high half of a product. */
static inline uint32_t mlc_multiply_high_u32(uint32_t x, uint32_t y) {
  return (uint32_t)((uint64_t)x * y >> 32);
}

static inline uint64_t mlc_multiply_high_u64(uint64_t x, uint64_t y) {
  const uint64_t low_x = (uint32_t)x, high_x = x >> 32, low_y = (uint32_t)y, high_y = y >> 32;
  const uint64_t middle = high_x * low_y + (low_x * low_y >> 32);
  const uint64_t other = low_x * high_y + (uint32_t)middle;
  return high_x * high_y + (middle >> 32) + (other >> 32);
}

/* Zeros in front of the first bit that is set, of so many bits. */
static inline int mlc_leading_zeros(uint64_t x, int bits) {
  return x ? __builtin_clzll(x) - (64 - bits) : bits;
}

/* Division of places rounded toward minus infinity, by a positive number. */
static inline long long mlc_floor_divide(long long x, long long y) {
  return x >= 0 ? x / y : -((-x + y - 1) / y);
}

/* A place modulo a positive number, from 0 on. */
static inline long long mlc_floor_modulo(long long x, long long y) {
  const long long rest = x % y;
  return rest < 0 ? rest + y : rest;
}

/* The smaller and the larger of two places. */
static inline long long mlc_smaller(long long x, long long y) {
  return x < y ? x : y;
}

static inline long long mlc_larger(long long x, long long y) {
  return x > y ? x : y;
}

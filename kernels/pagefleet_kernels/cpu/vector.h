// Vectors of 32-bit lanes, written once for every instruction set with GCC's vector types.
// The compiler's -march decides the width; intrinsics appear only where the portable form is slow.
#pragma once

#include <cstdint>
#include <cstring>
#include <utility>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace pagefleet {

#if defined(__AVX512F__) && defined(__AVX512BW__)
constexpr int L = 16;  // lanes
#elif defined(__AVX2__)
constexpr int L = 8;
#else
constexpr int L = 4;
#endif

typedef float vf __attribute__((vector_size(4 * L)));
typedef int32_t vi __attribute__((vector_size(4 * L)));
typedef uint32_t vu __attribute__((vector_size(4 * L)));
typedef uint16_t vh __attribute__((vector_size(2 * L)));  // half as wide: one 16-bit value a lane
typedef int8_t vb __attribute__((vector_size(L)));

// Loads and stores go through these types: a memcpy into a vector variable costs a detour over the stack.
typedef float vf_any __attribute__((vector_size(4 * L), aligned(1), may_alias));
typedef uint32_t vu_any __attribute__((vector_size(4 * L), aligned(1), may_alias));
typedef uint16_t vh_any __attribute__((vector_size(2 * L), aligned(1), may_alias));
typedef int8_t vb_any __attribute__((vector_size(L), aligned(1), may_alias));
typedef uint32_t u32_any __attribute__((aligned(1), may_alias));

static inline vf load(const float* p) { return *(const vf_any*)p; }
static inline vu load_words(const void* p) { return *(const vu_any*)p; }
static inline void store(float* p, vf x) { *(vf_any*)p = x; }
static inline void store_words(void* p, vu x) { *(vu_any*)p = x; }
static inline vf all(float x) { return x - vf{}; }
static inline vu all_words(uint32_t x) { return x - vu{}; }
static inline vf larger(vf a, vf b) { return a > b ? a : b; }

template <int... I>
static inline vi iota(std::integer_sequence<int, I...>) {
  return vi{I...};
}
static inline vi lane_numbers() { return iota(std::make_integer_sequence<int, L>()); }

static inline float largest(vf x) {
#if defined(__AVX512F__) && defined(__AVX512BW__)
  return _mm512_reduce_max_ps((__m512)x);
#else
  float best = x[0];
  for (int i = 1; i < L; ++i) best = x[i] > best ? x[i] : best;
  return best;
#endif
}

static inline float sum(vf x) {
#if defined(__AVX512F__) && defined(__AVX512BW__)
  return _mm512_reduce_add_ps((__m512)x);
#else
  float total = 0;
  for (int i = 0; i < L; ++i) total += x[i];
  return total;
#endif
}

// The first `count` words of a row, zero behind them; never reads past them.
static inline vu load_words(const void* p, int count) {
  if (count >= L) return load_words(p);
#if defined(__AVX512F__) && defined(__AVX512BW__)
  return (vu)_mm512_maskz_loadu_epi32((__mmask16)((1u << count) - 1), p);
#else
  uint32_t words[L] = {};
  memcpy(words, p, 4 * count);
  return load_words(words);
#endif
}

// 2^x for x <= 0: relative error 2e-7, zero below -126, NaN stays NaN.
static inline vf exp2_negative(vf x) {
  const vf low = all(-126.0f), magic = all(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
  vf clamped = x < low ? low : x;
  vf shifted = clamped + magic;
  vf f = clamped - (shifted - magic);
  vf power = (vf)(((vi)shifted - (vi)magic + 127) << 23);
  vf y = all(1.535336188319500e-4f);
  y = y * f + 1.339887440266574e-3f;
  y = y * f + 9.618437357674640e-3f;
  y = y * f + 5.550332471162809e-2f;
  y = y * f + 2.402264791363012e-1f;
  y = y * f + 6.931472028550421e-1f;
  y = y * f + 1.0f;
  return x < low ? vf{} : y * power;
}

constexpr float LOG2E = 1.4426950408889634f;

static inline vf exp_negative(vf x) { return exp2_negative(x * LOG2E); }

// 1 / (1 + e^-x) without overflow on either side.
static inline vf sigmoid(vf x) {
  vf e = exp_negative(x < 0 ? x : -x);
  return (x < 0 ? e : all(1.0f)) / (1.0f + e);
}

static inline vf tanh(vf x) {
  vf e = exp_negative(x < 0 ? x + x : -(x + x));
  vf t = (1.0f - e) / (1.0f + e);
  return x < 0 ? -t : t;
}

// --- bfloat16 and float16 ---

static inline vf widen_bf16(vh x) { return (vf)(__builtin_convertvector(x, vu) << 16); }

static inline vh narrow_bf16(vf x) {
  vu bits = (vu)x;
  vu rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  return __builtin_convertvector((vu)(x == x ? (vi)rounded : (vi)all_words(0x7fc0u)), vh);
}

// Each lane's low 16 bits as a float16. Exact, subnormals, infinities and NaN included.
static inline vf widen_f16_words(vu x) {
  vu magnitude = (x & 0x7fffu) << 13, sign = (x & 0x8000u) << 16;
  vf value = (vf)magnitude * 5.192296858534828e33f;  // 2^112 moves the exponent's bias
  vu special = (vu)(magnitude >= (0x7c00u << 13)) & 0x7f800000u;
  return (vf)((vu)value | special | sign);
}
static inline vf widen_f16(vh x) { return widen_f16_words(__builtin_convertvector(x, vu)); }

static inline vh narrow_f16(vf x) {
#if defined(__AVX512F__) && defined(__AVX512BW__)
  return (vh)_mm512_cvtps_ph((__m512)x, _MM_FROUND_TO_NEAREST_INT);
#elif defined(__F16C__) && defined(__AVX2__)
  return (vh)_mm256_cvtps_ph((__m256)x, _MM_FROUND_TO_NEAREST_INT);
#else
  vu bits = (vu)x, sign = (bits >> 16) & 0x8000u, magnitude = bits & 0x7fffffffu;
  vu normal = (magnitude + 0xfffu + ((magnitude >> 13) & 1u) - (112u << 23)) >> 13;
  // Adding 0.5 puts the subnormal's bits at the bottom of the fraction, rounded by the adder.
  vu subnormal = (vu)((vf)magnitude + 0.5f) - 0x3f000000u;
  vu y = (vu)(magnitude < (113u << 23) ? (vi)subnormal : (vi)normal);
  y = (vu)(magnitude >= 0x477ff000u ? (vi)all_words(0x7c00u) : (vi)y);
  y = (vu)(magnitude > 0x7f800000u ? (vi)all_words(0x7e00u) : (vi)y);
  return __builtin_convertvector(y | sign, vh);
#endif
}

// --- shuffles ---

template <int... I>
static inline vu pick(vu a, vu b, std::integer_sequence<int, I...>) {
  return (vu)__builtin_shuffle(a, b, (vi){I...});
}
#define PAGEFLEET_SHUFFLE(name, index)                                       \
  template <int... I>                                                       \
  static inline vu name##_(vu a, vu b, std::integer_sequence<int, I...>) {   \
    return __builtin_shuffle(a, b, (vi){(index)...});                       \
  }                                                                         \
  static inline vu name(vu a, vu b) { return name##_(a, b, std::make_integer_sequence<int, L>()); }

// Within 128-bit groups, as the hardware's unpack instructions do it.
PAGEFLEET_SHUFFLE(zip_low, (I & ~3) + ((I & 3) >> 1) + ((I & 1) ? L : 0))
PAGEFLEET_SHUFFLE(zip_high, (I & ~3) + 2 + ((I & 3) >> 1) + ((I & 1) ? L : 0))
PAGEFLEET_SHUFFLE(zip_low_pairs, (I & ~3) + (I & 1) + ((I & 2) ? L : 0))
PAGEFLEET_SHUFFLE(zip_high_pairs, (I & ~3) + 2 + (I & 1) + ((I & 2) ? L : 0))
// Whole 128-bit groups: those with an even or odd number, first of a, then of b.
PAGEFLEET_SHUFFLE(even_groups, ((I >> 2) * 8 + (I & 3)) % (2 * L) + 0)
PAGEFLEET_SHUFFLE(odd_groups, ((I >> 2) * 8 + 4 + (I & 3)) % (2 * L) + 0)
// Groups of a and b in turn: a0 b0 a1 b1 …, the lower and the upper half of the result.
PAGEFLEET_SHUFFLE(merge_groups_low, (I >> 3) * 4 + (I & 3) + ((I & 4) ? L : 0))
PAGEFLEET_SHUFFLE(merge_groups_high, (L / 2 + (I >> 3) * 4 + (I & 3)) % L + ((I & 4) ? L : 0))
#undef PAGEFLEET_SHUFFLE

// Rows become columns: lane i of word j moves to lane j of word i.
static inline void transpose(vu (&t)[L]) {
  vu a[L];
  for (int i = 0; i < L; i += 4) {
    vu x0 = zip_low(t[i], t[i + 1]), x1 = zip_high(t[i], t[i + 1]);
    vu y0 = zip_low(t[i + 2], t[i + 3]), y1 = zip_high(t[i + 2], t[i + 3]);
    a[i] = zip_low_pairs(x0, y0), a[i + 1] = zip_high_pairs(x0, y0);
    a[i + 2] = zip_low_pairs(x1, y1), a[i + 3] = zip_high_pairs(x1, y1);
  }
  // Now word i of each group of four rows holds, in its 128-bit group g, column 4 * g + i of those rows.
#if defined(__AVX512F__) && defined(__AVX512BW__)
  for (int i = 0; i < 4; ++i) {
    vu e0 = even_groups(a[i], a[i + 4]), o0 = odd_groups(a[i], a[i + 4]);
    vu e1 = even_groups(a[i + 8], a[i + 12]), o1 = odd_groups(a[i + 8], a[i + 12]);
    t[i] = even_groups(e0, e1), t[i + 8] = odd_groups(e0, e1);
    t[i + 4] = even_groups(o0, o1), t[i + 12] = odd_groups(o0, o1);
  }
#elif defined(__AVX2__)
  for (int i = 0; i < 4; ++i) t[i] = even_groups(a[i], a[i + 4]), t[i + 4] = odd_groups(a[i], a[i + 4]);
#else
  for (int i = 0; i < 4; ++i) t[i] = a[i];
#endif
}

// --- two bfloat16 values a lane, where the CPU multiplies them natively ---

#if defined(__AVX512BF16__) && defined(__AVX512BW__)
#define PAGEFLEET_BF16_DOT 1
static inline vf dot_pairs(vf sum, vu a, vu b) { return (vf)_mm512_dpbf16_ps((__m512)sum, (__m512bh)a, (__m512bh)b); }
static inline vu narrow_pairs(vf first, vf second) { return (vu)_mm512_cvtne2ps_pbh((__m512)second, (__m512)first); }
static inline vu zip_low_halves(vu a, vu b) { return (vu)_mm512_unpacklo_epi16((__m512i)a, (__m512i)b); }
static inline vu zip_high_halves(vu a, vu b) { return (vu)_mm512_unpackhi_epi16((__m512i)a, (__m512i)b); }
#endif

}  // namespace pagefleet

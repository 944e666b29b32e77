// Vectors of 32-bit lanes, written once for every instruction set with GCC's vector types.
// The compiler's -march decides the width; intrinsics appear only where the portable form is slow.
#pragma once

#include <cstdint>
#include <cstring>
#include <utility>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

// Small functions are kernels' inner loops: registers must not pass through a call.
#define PAGEFLEET_INLINE static inline __attribute__((always_inline))
#define PAGEFLEET_UNROLL _Pragma("GCC unroll 16")

namespace pagefleet {

#if defined(__AVX512BF16__) && defined(__AVX512BW__)
#define PAGEFLEET_BF16_DOT 1  // the CPU multiplies pairs of bfloat16 natively
#endif

#if defined(__AVX512VNNI__) && defined(__AVX512BW__)
#define PAGEFLEET_BYTE_DOT 1  // and quads of bytes
#endif
#if defined(PAGEFLEET_BF16_DOT) || defined(PAGEFLEET_BYTE_DOT)
#define PAGEFLEET_WORD_DOT 1  // either of the two
#endif

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
typedef int64_t vl __attribute__((vector_size(4 * L)));
typedef uint16_t vh __attribute__((vector_size(2 * L)));  // half as wide: one 16-bit value a lane
typedef int8_t vb __attribute__((vector_size(L)));

// Loads and stores go through these types: a memcpy into a vector variable costs a detour over the stack.
typedef float vf_any __attribute__((vector_size(4 * L), aligned(1), may_alias));
typedef uint32_t vu_any __attribute__((vector_size(4 * L), aligned(1), may_alias));
typedef uint16_t vh_any __attribute__((vector_size(2 * L), aligned(1), may_alias));
typedef int8_t vb_any __attribute__((vector_size(L), aligned(1), may_alias));
typedef uint32_t u32_any __attribute__((aligned(1), may_alias));

PAGEFLEET_INLINE vf load(const float* p) { return *(const vf_any*)p; }
PAGEFLEET_INLINE vu load_words(const void* p) { return *(const vu_any*)p; }
PAGEFLEET_INLINE void store(float* p, vf x) { *(vf_any*)p = x; }
PAGEFLEET_INLINE void store_words(void* p, vu x) { *(vu_any*)p = x; }
PAGEFLEET_INLINE vf all(float x) { return x - vf{}; }
PAGEFLEET_INLINE vu all_words(uint32_t x) { return x - vu{}; }
PAGEFLEET_INLINE vf larger(vf a, vf b) { return a > b ? a : b; }

template <int... I>
PAGEFLEET_INLINE vi iota(std::integer_sequence<int, I...>) {
  return vi{I...};
}
PAGEFLEET_INLINE vi lane_numbers() { return iota(std::make_integer_sequence<int, L>()); }

PAGEFLEET_INLINE float largest(vf x) {
#if defined(__AVX512F__) && defined(__AVX512BW__)
  return _mm512_reduce_max_ps((__m512)x);
#else
  float best = x[0];
  for (int i = 1; i < L; ++i) best = x[i] > best ? x[i] : best;
  return best;
#endif
}

PAGEFLEET_INLINE float sum(vf x) {
#if defined(__AVX512F__) && defined(__AVX512BW__)
  return _mm512_reduce_add_ps((__m512)x);
#else
  float total = 0;
  for (int i = 0; i < L; ++i) total += x[i];
  return total;
#endif
}

// The first `count` words of a row, zero behind them; never reads past them.
PAGEFLEET_INLINE vu load_words(const void* p, int count) {
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
PAGEFLEET_INLINE vf exp2_negative(vf x) {
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

// Round to nearest even what is below 2^22: adding 1.5 * 2^23 leaves the integer in the low bits.
PAGEFLEET_INLINE vi round_to_int(vf x) { return (vi)(x + 12582912.0f) - 0x4b400000; }

constexpr float LOG2E = 1.4426950408889634f;

PAGEFLEET_INLINE vf exp_negative(vf x) { return exp2_negative(x * LOG2E); }

// 1 / (1 + e^-x) without overflow on either side.
PAGEFLEET_INLINE vf sigmoid(vf x) {
  vf e = exp_negative(x < 0 ? x : -x);
  return (x < 0 ? e : all(1.0f)) / (1.0f + e);
}

PAGEFLEET_INLINE vf tanh(vf x) {
  vf e = exp_negative(x < 0 ? x + x : -(x + x));
  vf t = (1.0f - e) / (1.0f + e);
  return x < 0 ? -t : t;
}

// --- bfloat16 and float16 ---

PAGEFLEET_INLINE vf widen_bf16(vh x) { return (vf)(__builtin_convertvector(x, vu) << 16); }

PAGEFLEET_INLINE vh narrow_bf16(vf x) {
#ifdef PAGEFLEET_BF16_DOT
  return (vh)_mm512_cvtneps_pbh((__m512)x);
#endif
  vu bits = (vu)x;
  vu rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  return __builtin_convertvector((vu)(x == x ? (vi)rounded : (vi)all_words(0x7fc0u)), vh);
}

// Each lane's low 16 bits as a float16. Exact, subnormals, infinities and NaN included.
PAGEFLEET_INLINE vf widen_f16_words(vu x) {
  vu magnitude = (x & 0x7fffu) << 13, sign = (x & 0x8000u) << 16;
  vf value = (vf)magnitude * 5.192296858534828e33f;  // 2^112 moves the exponent's bias
  vu special = (vu)(magnitude >= (0x7c00u << 13)) & 0x7f800000u;
  return (vf)((vu)value | special | sign);
}
PAGEFLEET_INLINE vf widen_f16(vh x) { return widen_f16_words(__builtin_convertvector(x, vu)); }

PAGEFLEET_INLINE vh narrow_f16(vf x) {
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
PAGEFLEET_INLINE vu pick(vu a, vu b, std::integer_sequence<int, I...>) {
  return (vu)__builtin_shuffle(a, b, (vi){I...});
}
#define PAGEFLEET_SHUFFLE(name, index)                                       \
  template <int... I>                                                       \
  PAGEFLEET_INLINE vu name##_(vu a, vu b, std::integer_sequence<int, I...>) {   \
    return __builtin_shuffle(a, b, (vi){(index)...});                       \
  }                                                                         \
  PAGEFLEET_INLINE vu name(vu a, vu b) { return name##_(a, b, std::make_integer_sequence<int, L>()); }

// Within 128-bit groups, as the hardware's unpack instructions do it.
PAGEFLEET_SHUFFLE(zip_low, (I & ~3) + ((I & 3) >> 1) + ((I & 1) ? L : 0))
PAGEFLEET_SHUFFLE(zip_high, (I & ~3) + 2 + ((I & 3) >> 1) + ((I & 1) ? L : 0))
// Whole 128-bit groups: those with an even or odd number, first of a, then of b.
PAGEFLEET_SHUFFLE(even_groups, ((I >> 2) * 8 + (I & 3)) % (2 * L) + 0)
PAGEFLEET_SHUFFLE(odd_groups, ((I >> 2) * 8 + 4 + (I & 3)) % (2 * L) + 0)
// Groups of a and b in turn: a0 b0 a1 b1 …, the lower and the upper half of the result.
PAGEFLEET_SHUFFLE(merge_groups_low, (I >> 3) * 4 + (I & 3) + ((I & 4) ? L : 0))
PAGEFLEET_SHUFFLE(merge_groups_high, (L / 2 + (I >> 3) * 4 + (I & 3)) % L + ((I & 4) ? L : 0))
#undef PAGEFLEET_SHUFFLE

// The same for pairs of words. 64-bit lanes, or the compiler takes a permutation with an index register.
template <int... I>
PAGEFLEET_INLINE vu zip_pairs(vu a, vu b, int high, std::integer_sequence<int, I...>) {
  if (high) return (vu)__builtin_shuffle((vl)a, (vl)b, (vl){(I & ~1) + 1 + ((I & 1) ? L / 2 : 0)...});
  return (vu)__builtin_shuffle((vl)a, (vl)b, (vl){(I & ~1) + ((I & 1) ? L / 2 : 0)...});
}
PAGEFLEET_INLINE vu zip_low_pairs(vu a, vu b) { return zip_pairs(a, b, 0, std::make_integer_sequence<int, L / 2>()); }
PAGEFLEET_INLINE vu zip_high_pairs(vu a, vu b) { return zip_pairs(a, b, 1, std::make_integer_sequence<int, L / 2>()); }

// Four rows: group g of word i gets column 4 * g + i of each.
PAGEFLEET_INLINE void transpose_groups(vu* t) {
  vu x0 = zip_low(t[0], t[1]), x1 = zip_high(t[0], t[1]);
  vu y0 = zip_low(t[2], t[3]), y1 = zip_high(t[2], t[3]);
  t[0] = zip_low_pairs(x0, y0), t[1] = zip_high_pairs(x0, y0);
  t[2] = zip_low_pairs(x1, y1), t[3] = zip_high_pairs(x1, y1);
}

// Neighbouring groups of a, then of b, added.
PAGEFLEET_INLINE vf sum_groups(vf a, vf b) {
  return (vf)even_groups((vu)a, (vu)b) + (vf)odd_groups((vu)a, (vu)b);
}

#ifdef PAGEFLEET_BYTE_DOT
// Each lane's four bytes of a, without sign, times those of b, with sign.
PAGEFLEET_INLINE vi dot_bytes(vi sum, vu a, vu b) {
  return (vi)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)a, (__m512i)b);
}
#endif

// Rows become columns: lane i of word j moves to lane j of word i.
PAGEFLEET_INLINE void transpose(vu (&t)[L]) {
  PAGEFLEET_UNROLL
  for (int i = 0; i < L; i += 4) transpose_groups(t + i);
#if defined(__AVX512F__) && defined(__AVX512BW__)
  PAGEFLEET_UNROLL
  for (int i = 0; i < 4; ++i) {
    vu e0 = even_groups(t[i], t[i + 4]), o0 = odd_groups(t[i], t[i + 4]);
    vu e1 = even_groups(t[i + 8], t[i + 12]), o1 = odd_groups(t[i + 8], t[i + 12]);
    t[i] = even_groups(e0, e1), t[i + 8] = odd_groups(e0, e1);
    t[i + 4] = even_groups(o0, o1), t[i + 12] = odd_groups(o0, o1);
  }
#elif defined(__AVX2__)
  PAGEFLEET_UNROLL
  for (int i = 0; i < 4; ++i) {
    vu e = even_groups(t[i], t[i + 4]), o = odd_groups(t[i], t[i + 4]);
    t[i] = e, t[i + 4] = o;
  }
#endif
}

// --- two bfloat16 values a lane, where the CPU multiplies them natively ---

#ifdef PAGEFLEET_BF16_DOT
PAGEFLEET_INLINE vf dot_pairs(vf sum, vu a, vu b) { return (vf)_mm512_dpbf16_ps((__m512)sum, (__m512bh)a, (__m512bh)b); }
PAGEFLEET_INLINE vu narrow_pairs(vf first, vf second) { return (vu)_mm512_cvtne2ps_pbh((__m512)second, (__m512)first); }
#endif

#ifdef PAGEFLEET_WORD_DOT
PAGEFLEET_INLINE vu zip_low_halves(vu a, vu b) { return (vu)_mm512_unpacklo_epi16((__m512i)a, (__m512i)b); }
PAGEFLEET_INLINE vu zip_high_halves(vu a, vu b) { return (vu)_mm512_unpackhi_epi16((__m512i)a, (__m512i)b); }
PAGEFLEET_INLINE vu zip_low_bytes(vu a, vu b) { return (vu)_mm512_unpacklo_epi8((__m512i)a, (__m512i)b); }
PAGEFLEET_INLINE vu zip_high_bytes(vu a, vu b) { return (vu)_mm512_unpackhi_epi8((__m512i)a, (__m512i)b); }
#endif

}  // namespace pagefleet

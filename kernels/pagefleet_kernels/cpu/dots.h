// Decode of pages of codes where the CPU multiplies bytes, or pairs of bfloat16, natively: codes stay in words of four,
// and each word is multiplied by two words of the query, or of the weights.
#pragma once

#include "attention.h"

namespace pagefleet {

// A policy says what the two words are, and what a word of codes (of one key; of one place in four values) is for each.
// Values of four positions are interleaved, so that sums of 4 L values come in 128-bit groups, each of another L values.

#ifdef PAGEFLEET_BYTE_DOT
// Queries and weights become integers of 16 bits, their high bytes and their low bytes; sums are exact. What is rounded
// is 2^-16 of the largest number of a query, or of a tile's weights.
struct Int8Dots : Int8 {
  static constexpr bool DOTS = true;
  static constexpr Order ORDER = QUADS;
  typedef vi Sum;

  // One of two factors must have no sign, so that keys are multiplied as code + 128.
  PAGEFLEET_INLINE void key_words(vu codes, vu (&x)[2]) { x[0] = x[1] = codes ^ 0x80808080u; }
  PAGEFLEET_INLINE Sum add_key(Sum sum, vu x, vu query) { return dot_bytes(sum, x, query); }
  PAGEFLEET_INLINE void value_words(vu codes, vu (&x)[2]) { x[0] = x[1] = codes; }
  PAGEFLEET_INLINE Sum add_value(Sum sum, vu x, vu weights) { return dot_bytes(sum, weights, x); }
  PAGEFLEET_INLINE Sum join(Sum high, Sum low) { return (high << 8) + low; }
  PAGEFLEET_INLINE vf number(Sum sum, int32_t surplus) { return __builtin_convertvector(sum - surplus, vf); }

  // `words` are two rows of words; returns what the products are to be multiplied by.
  static float split_query(const float* query, int size, uint32_t (*words)[MAX_SIZE / 4], int32_t& surplus) {
    vf most{}, broken{};
    for (int i = 0; i < size; i += L) {
      most = larger((vf)((vi)load(query + i) & 0x7fffffff), most);
      broken += load(query + i) * 0.0f;  // the factor of what isn't finite is no number
    }
    const float largest_size = largest(most), inverse = largest_size > 0 ? 32512.0f / largest_size : 0.0f;
    vi total{};
    for (int i = 0; i < size; i += L) {
      const vi x = round_to_int(load(query + i) * inverse), high = (x + 128) >> 8;
      total += x;
      *(vb_any*)((char*)words[0] + i) = __builtin_convertvector(high, vb);
      *(vb_any*)((char*)words[1] + i) = __builtin_convertvector(x - (high << 8), vb);
    }
    for (int i = 0; i < L; ++i) surplus += 128 * total[i];
    return largest_size / 32512.0f + sum(broken);
  }

  PAGEFLEET_INLINE float split_weights(const vf (&x)[DECODE_TILE / L], char* words) {
    vf most{}, total{};
    for (const vf& part : x) most = larger(part, most), total += part;
    const float largest_weight = largest(most), inverse = largest_weight > 0 ? 65535.0f / largest_weight : 0.0f;
    for (int n = 0; n < DECODE_TILE / L; ++n) {
      const vi rounded = round_to_int(x[n] * inverse);
      *(vb_any*)(words + n * L) = __builtin_convertvector(rounded >> 8, vb);
      *(vb_any*)(words + DECODE_TILE + n * L) = __builtin_convertvector(rounded, vb);
    }
    return largest_weight / 65535.0f + 0.0f * sum(total);
  }
};
#endif

#ifdef PAGEFLEET_BF16_DOT
// Codes 0 and 2 of a word make a pair of bfloat16, codes 1 and 3 another, 2^120 times too small. The hardware takes
// codes below 2^-6 of a layer's scale for zero, and would take products so small for zero, too: queries and weights are
// 2^60 times too large, and so are the results.
struct Fp8Dots : Fp8 {
  static constexpr bool DOTS = true;
  static constexpr Order ORDER = QUADS;
  typedef vf Sum;
  static constexpr float LIFT = 1.152921504606847e18f;  // 2^60

  PAGEFLEET_INLINE void key_words(vu codes, vu (&x)[2]) {
    const __m512i in_place = _mm512_srai_epi16((__m512i)codes, 4);
    const __m512i moved = _mm512_srai_epi16(_mm512_slli_epi16((__m512i)codes, 8), 4);
    x[0] = (vu)moved & 0x87f087f0u, x[1] = (vu)in_place & 0x87f087f0u;
  }
  PAGEFLEET_INLINE Sum add_key(Sum sum, vu x, vu query) { return dot_pairs(sum, x, query); }
  PAGEFLEET_INLINE void value_words(vu codes, vu (&x)[2]) { key_words(codes, x); }
  PAGEFLEET_INLINE Sum add_value(Sum sum, vu x, vu weights) { return dot_pairs(sum, x, weights); }
  PAGEFLEET_INLINE Sum join(Sum even, Sum odd) { return even + odd; }
  PAGEFLEET_INLINE vf number(Sum sum, int32_t) { return sum; }

  // Pairs (0, 2) and (1, 3) of each four numbers.
  PAGEFLEET_INLINE void pair(vf x, char* even, char* odd) {
    vh narrow = narrow_bf16(x * LIFT);
    for (int i = 0; i < L; i += 4) {
      const uint16_t pairs[2][2] = {{narrow[i], narrow[i + 2]}, {narrow[i + 1], narrow[i + 3]}};
      memcpy(even + i, pairs[0], 4);
      memcpy(odd + i, pairs[1], 4);
    }
  }

  static float split_query(const float* query, int size, uint32_t (*words)[MAX_SIZE / 4], int32_t&) {
    for (int i = 0; i < size; i += L) pair(load(query + i), (char*)words[0] + i, (char*)words[1] + i);
    return LIFT;
  }

  PAGEFLEET_INLINE float split_weights(const vf (&x)[DECODE_TILE / L], char* words) {
    for (int n = 0; n < DECODE_TILE / L; ++n) pair(x[n], words + n * L, words + DECODE_TILE + n * L);
    return LIFT;
  }
};
#endif

#ifdef PAGEFLEET_WORD_DOT

// --- queries: first words and second words, spread as spread_query has it, then factor and surplus of the products ---

PAGEFLEET_INLINE int words_stride(int key_size) { return 4 * up(key_size / 4, L); }

template <class Kv>
static void spread_words(const float* query, int key_size, float* to) {
  uint32_t words[2][MAX_SIZE / 4] = {};
  int32_t surplus = 0;
  const float factor = Kv::split_query(query, key_size, words, surplus);
  const vi groups = (lane_numbers() >> 2) * 4;
  for (const uint32_t* half : words)
    for (int w = 0; w < key_size / 4; w += L) {
      const vu part = load_words(half + w);
      for (int i = 0; i < 4; ++i, to += L) store_words(to, __builtin_shuffle(part, groups + i));
    }
  to[0] = factor;
  memcpy(to + 1, &surplus, sizeof surplus);
}

PAGEFLEET_INLINE vi sum_groups(vi a, vi b) {
  return (vi)even_groups((vu)a, (vu)b) + (vi)odd_groups((vu)a, (vu)b);
}

// As score_keys.
template <class Kv, int R>
PAGEFLEET_INLINE void score_words(const char* keys, const int64_t* offsets, const int64_t* ahead, const float* query,
                                  int stride, int key_size, float* scores, int scores_stride) {
  typedef typename Kv::Sum Sum;
  const int words = key_size / 4, second = words_stride(key_size);
  Sum passes[2][R];
  PAGEFLEET_UNROLL
  for (int pass = 0; pass < 2; ++pass) {
    Sum sums[2][R][2] = {};
    const int64_t *offset = offsets + pass * 8, *next = ahead + pass * 8;
    const float* q = query;
    for (int w = 0; w < words; w += L, q += 4 * L) {
      vu t[8];
      PAGEFLEET_UNROLL
      for (int i = 0; i < 8; ++i) {
        t[i] = load_words(keys + offset[i] + 4 * w, words - w);
        prefetch(keys + next[i] + 4 * w);
      }
      transpose_groups(t), transpose_groups(t + 4);
      PAGEFLEET_UNROLL
      for (int i = 0; i < 4; ++i) {
        vu x[2][2];
        for (int b = 0; b < 2; ++b) Kv::key_words(t[4 * b + i], x[b]);
        for (int r = 0; r < R; ++r)
          for (int half = 0; half < 2; ++half) {
            const vu part = load_words(q + r * stride + half * second + i * L);
            for (int b = 0; b < 2; ++b) sums[half][r][b] = Kv::add_key(sums[half][r][b], x[b][half], part);
          }
      }
    }
    for (int r = 0; r < R; ++r)
      passes[pass][r] = sum_groups(Kv::join(sums[0][r][0], sums[1][r][0]), Kv::join(sums[0][r][1], sums[1][r][1]));
  }
  for (int r = 0; r < R; ++r) {
    const float* numbers = query + r * stride + 2 * second;
    int32_t surplus;
    memcpy(&surplus, numbers + 1, sizeof surplus);
    store(scores + r * scores_stride, Kv::number(sum_groups(passes[0][r], passes[1][r]), surplus) * numbers[0]);
  }
}

// In the place of a tile's weights their first words, their second words, and at the end the factor of the products.
template <class Kv>
PAGEFLEET_INLINE void split_tile(float* weights, int width) {
  vf x[DECODE_TILE / L];
  for (int n = 0; n < DECODE_TILE / L; ++n) x[n] = n * L < width ? load(weights + n * L) : vf{};
  weights[DECODE_TILE - 1] = Kv::split_weights(x, (char*)weights);
}

// Sums of 4 L values from vector FIRST on, N of them, over `count` positions; `left` values are there to be read.
template <class Kv, int R, int FIRST, int N>
PAGEFLEET_INLINE void add_quads(const char* values, const int64_t* offsets, const int64_t* ahead, int count,
                                const float* weights, const float* shrink, float* sums, int sums_stride, int left) {
  typename Kv::Sum acc[2][R][N] = {};
  for (int k = 0; k < count; k += 4) {
    vu v[4], z[4];
    PAGEFLEET_UNROLL
    for (int i = 0; i < 4; ++i) {
      v[i] = load_words(values + offsets[k + i], left / 4);
      if (FIRST == 0) prefetch(values + ahead[k + i]);
    }
    if constexpr (FIRST == 0) {
      const vu x = zip_low_bytes(v[0], v[1]), y = zip_low_bytes(v[2], v[3]);
      z[0] = zip_low_halves(x, y), z[1] = zip_high_halves(x, y);
    }
    if constexpr (FIRST + N == 4) {
      const vu x = zip_high_bytes(v[0], v[1]), y = zip_high_bytes(v[2], v[3]);
      z[N - 2] = zip_low_halves(x, y), z[N - 1] = zip_high_halves(x, y);
    }
    vu words[N][2];
    for (int n = 0; n < N; ++n) Kv::value_words(z[n], words[n]);
    for (int r = 0; r < R; ++r)
      for (int half = 0; half < 2; ++half) {
        const vu part = all_words(*(const u32_any*)((const char*)(weights + r * DECODE_TILE) + half * DECODE_TILE + k));
        PAGEFLEET_UNROLL
        for (int n = 0; n < N; ++n) acc[half][r][n] = Kv::add_value(acc[half][r][n], words[n][half], part);
      }
  }
  for (int r = 0; r < R; ++r)
    for (int n = 0; n < N; ++n) {
      float* sum = sums + r * sums_stride + (FIRST + n) * L;
      const vf added = Kv::number(Kv::join(acc[0][r][n], acc[1][r][n]), 0);
      store(sum, load(sum) * shrink[r] + added * weights[r * DECODE_TILE + DECODE_TILE - 1]);
    }
}

// As add_all_values.
template <class Kv, int R>
PAGEFLEET_INLINE void add_all_quads(const char* values, const int64_t* offsets, const int64_t* ahead, int count,
                                    const float* weights, const float* shrink, float* sums, int sums_stride, int size) {
  for (int d = 0; d < size; d += 4 * L) {
    if constexpr (R <= 3) {
      add_quads<Kv, R, 0, 4>(values + d, offsets, ahead, count, weights, shrink, sums + d, sums_stride, size - d);
    } else {
      add_quads<Kv, R, 0, 2>(values + d, offsets, ahead, count, weights, shrink, sums + d, sums_stride, size - d);
      add_quads<Kv, R, 2, 2>(values + d, offsets, ahead, count, weights, shrink, sums + d, sums_stride, size - d);
    }
  }
}

#endif

}  // namespace pagefleet

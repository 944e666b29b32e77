// One query of a row: every key and value is read once, for all query heads of its group, straight from the pages.
#pragma once

#include "dots.h"

namespace pagefleet {

// Call f with the number of rows as a constant, at most MOST at a time: f(std::integral_constant<int, R>, first row).
template <int MOST, class F>
PAGEFLEET_INLINE void by_rows(int rows, F&& f) {
  for (int r = 0; r < rows; r += MOST) {
    switch (rows - r < MOST ? rows - r : MOST) {
#define PAGEFLEET_CASE(n) \
  case n:                 \
    if constexpr (n <= MOST) f(std::integral_constant<int, n>(), r); \
    break;
      PAGEFLEET_CASE(1)
      PAGEFLEET_CASE(2)
      PAGEFLEET_CASE(3)
      PAGEFLEET_CASE(4)
      PAGEFLEET_CASE(5)
      PAGEFLEET_CASE(6)
      PAGEFLEET_CASE(7)
      PAGEFLEET_CASE(8)
#undef PAGEFLEET_CASE
    }
  }
}

// --- queries: floats, or words of two bfloat16; padded with zeros to whole vectors ---

template <class Kv>
PAGEFLEET_INLINE int query_stride(int key_size) {
  return up(Kv::PAIRS ? key_size / 2 : key_size, L * STEPS_OF_WORD<Kv>);
}

template <class Kv>
PAGEFLEET_INLINE void read_query(const char* from, int type, int key_size, float* to) {
  const int stride = query_stride<Kv>(key_size);
  memset(to, 0, 4 * stride);
  if constexpr (Kv::PAIRS)
    memcpy(to, from, 2 * key_size);
  else
    read_floats(from, type, key_size, to);
}

// --- products of R queries with the keys of L positions ---
//
// Transposing L keys word by word takes four shuffles a key and vector; here it stops after two, when four keys' words
// lie side by side in each 128-bit group. Group g of vector i then holds word 4 g + i of four keys, the query is spread
// to match, and the groups are summed once at the end.

template <class Kv>
PAGEFLEET_INLINE int spread_stride(int key_size) {
#ifdef PAGEFLEET_WORD_DOT
  if constexpr (Kv::DOTS) return 2 * words_stride(key_size) + L;
#endif
  return 4 * query_stride<Kv>(key_size);
}

template <class Kv>
PAGEFLEET_INLINE void spread_query(const float* query, int key_size, float* to) {
#ifdef PAGEFLEET_WORD_DOT
  if constexpr (Kv::DOTS) return spread_words<Kv>(query, key_size, to);
#endif
  constexpr int PER_WORD = STEPS_OF_WORD<Kv>;
  const vi groups = (lane_numbers() >> 2) * (4 * PER_WORD);
  for (int w = 0; w < query_stride<Kv>(key_size); w += L * PER_WORD) {
    vu parts[4];
    for (int n = 0; n < 4; ++n) parts[n] = load_words(query + w + L * (n % PER_WORD));
    for (int i = 0; i < 4 * PER_WORD; ++i, to += L) {
      // A shuffle takes its index modulo its 2 L words.
      vu spread = __builtin_shuffle(parts[0], parts[1], groups + i);
      if constexpr (PER_WORD == 4)
        spread = (vu)(groups + i < 2 * L ? (vi)spread : (vi)__builtin_shuffle(parts[2], parts[3], groups + i));
      store_words(to, spread);
    }
  }
}

template <class Kv, int R>
PAGEFLEET_INLINE void score_keys(const char* keys, const int64_t* offsets, const int64_t* ahead, const float* query,
                                 int stride, int key_size, float* scores, int scores_stride) {
#ifdef PAGEFLEET_WORD_DOT
  if constexpr (Kv::DOTS)
    return score_words<Kv, R>(keys, offsets, ahead, query, stride, key_size, scores, scores_stride);
#endif
  constexpr int BLOCKS = L == 4 ? 1 : 2;     // of four keys, at a time
  constexpr int PASSES = L / 4 / BLOCKS;
  constexpr int CHAINS = R < 3 ? 2 : 1;      // independent sums, to hide the latency of a multiplication
  constexpr int PER_WORD = STEPS_OF_WORD<Kv>;
  const int words = key_size / Kv::PER_WORD;
  vf passes[PASSES][R];
  PAGEFLEET_UNROLL
  for (int pass = 0; pass < PASSES; ++pass) {
    vf sums[CHAINS][R][BLOCKS] = {};
    const int64_t *offset = offsets + pass * BLOCKS * 4, *next = ahead + pass * BLOCKS * 4;
    const float* q = query;
    for (int w = 0; w < words; w += L, q += 4 * PER_WORD * L) {
      vu t[4 * BLOCKS];
      if (words - w >= L) {
        PAGEFLEET_UNROLL
        for (int i = 0; i < 4 * BLOCKS; ++i) {
          t[i] = load_words(keys + offset[i] + 4 * w);
          prefetch(keys + next[i] + 4 * w);
        }
      } else {
        PAGEFLEET_UNROLL
        for (int i = 0; i < 4 * BLOCKS; ++i) t[i] = load_words(keys + offset[i] + 4 * w, words - w);
      }
      PAGEFLEET_UNROLL
      for (int b = 0; b < BLOCKS; ++b) transpose_groups(t + 4 * b);
      PAGEFLEET_UNROLL
      for (int i = 0; i < 4; ++i) {
        if constexpr (Kv::PAIRS) {
#ifdef PAGEFLEET_BF16_DOT
          for (int r = 0; r < R; ++r) {
            vu spread = load_words(q + r * stride + i * L);
            for (int b = 0; b < BLOCKS; ++b)
              sums[i % CHAINS][r][b] = dot_pairs(sums[i % CHAINS][r][b], t[4 * b + i], spread);
          }
#endif
        } else {
          for (int b = 0; b < BLOCKS; ++b) {
            vf x[PER_WORD];
            Kv::expand(t[4 * b + i], x);
            for (int n = 0; n < PER_WORD; ++n)
              for (int r = 0; r < R; ++r)
                sums[i % CHAINS][r][b] += x[n] * load(q + r * stride + (i * PER_WORD + n) * L);
          }
        }
      }
    }
    for (int r = 0; r < R; ++r) {
      if constexpr (CHAINS == 2)
        for (int b = 0; b < BLOCKS; ++b) sums[0][r][b] += sums[1][r][b];
      passes[pass][r] = BLOCKS == 2 ? sum_groups(sums[0][r][0], sums[0][r][BLOCKS - 1]) : sums[0][r][0];
    }
  }
  for (int r = 0; r < R; ++r)
    store(scores + r * scores_stride, PASSES == 2 ? sum_groups(passes[0][r], passes[PASSES - 1][r]) : passes[0][r]);
}

// --- sums[r] = sums[r] * shrink[r] + weights[r] · values, over `count` positions (an even number) ---

template <class Kv, int R, int N>
PAGEFLEET_INLINE void add_values(const char* values, const int64_t* offsets, const int64_t* ahead, int count,
                                 const float* weights, int weights_stride, const float* shrink, float* sums,
                                 int sums_stride, int left) {
  vf acc[R][N];
  for (int r = 0; r < R; ++r)
    for (int n = 0; n < N; ++n) acc[r][n] = load(sums + r * sums_stride + n * L) * shrink[r];
  if constexpr (Kv::PAIRS) {
#ifdef PAGEFLEET_BF16_DOT
    for (int k = 0; k < count; k += 2) {
      const char *a = values + offsets[k], *b = values + offsets[k + 1];
      const uint32_t* w = (const uint32_t*)weights + k / 2;
      for (int n = 0; n < N; n += 2) {
        prefetch(values + ahead[k] + 2 * n * L);
        prefetch(values + ahead[k + 1] + 2 * n * L);
        vu x = load_words(a + 2 * n * L, (left - n * L) / 2), y = load_words(b + 2 * n * L, (left - n * L) / 2);
        vu low = zip_low_halves(x, y), high = zip_high_halves(x, y);
        for (int r = 0; r < R; ++r) {
          vu p = all_words(w[r * weights_stride]);
          acc[r][n] = dot_pairs(acc[r][n], low, p);
          acc[r][n + 1] = dot_pairs(acc[r][n + 1], high, p);
        }
      }
    }
#endif
  } else {
    for (int k = 0; k < count; ++k) {
      const char* v = values + offsets[k];
      vf p[R];
      for (int r = 0; r < R; ++r) p[r] = all(weights[r * weights_stride + k]);
      for (int n = 0; n < N; ++n) {
        if (n * L * Kv::BYTES % 64 == 0) prefetch(values + ahead[k] + n * L * Kv::BYTES);
        vf x = left - n * L >= L ? Kv::values(v + n * L * Kv::BYTES)
                                 : values_tail<Kv>(v + n * L * Kv::BYTES, left - n * L);
        for (int r = 0; r < R; ++r) acc[r][n] += x * p[r];
      }
    }
  }
  for (int r = 0; r < R; ++r)
    for (int n = 0; n < N; ++n) store(sums + r * sums_stride + n * L, acc[r][n]);
}

template <class Kv, int R>
PAGEFLEET_INLINE void add_all_values(const char* values, const int64_t* offsets, const int64_t* ahead, int count,
                                     const float* weights, int weights_stride, const float* shrink, float* sums,
                                     int sums_stride, int size) {
#ifdef PAGEFLEET_WORD_DOT
  if constexpr (Kv::DOTS)
    return add_all_quads<Kv, R>(values, offsets, ahead, count, weights, shrink, sums, sums_stride, size);
#endif
  constexpr int REGISTERS = L == 16 ? 20 : 8;
  constexpr int LEAST = Kv::PAIRS ? 2 : 1;
  constexpr int N = R * 4 <= REGISTERS ? 4 : R * 2 <= REGISTERS ? 2 : LEAST;
  int d = 0;
  // The constant says that no vector is cut short.
  for (; d + N * L <= size; d += N * L)
    add_values<Kv, R, N>(values + d * Kv::BYTES, offsets, ahead, count, weights, weights_stride, shrink,
                         sums + d, sums_stride, N * L);
  for (; d < size; d += LEAST * L)
    add_values<Kv, R, LEAST>(values + d * Kv::BYTES, offsets, ahead, count, weights, weights_stride, shrink,
                             sums + d, sums_stride, size - d);
}

// Work space of one item, in floats: queries, scores, weights.
template <class Kv>
PAGEFLEET_INLINE int64_t decode_space(const AttentionArguments& a) {
  return int64_t(a.query_heads) * (spread_stride<Kv>(a.key_size) + DECODE_TILE + 1) + MAX_SIZE + 2 * L;
}

struct Item {
  int32_t row, head;   // head -1: a decode item, all heads
  int32_t begin, end;  // positions of the context (decode), tokens of the row (prefill)
  int32_t part;        // decode: where the item's part lies, -1: it is the whole context
};

static inline void fill_tile(const AttentionArguments& a, const Item& item, int tile, Offsets& offsets) {
  offsets.fill(a, a.tables + a.table_start[item.row], tile, DECODE_TILE, item.begin, item.end - 1);
}

// Attend the row's one query to the item's positions, all heads; `following` is the decode item that comes next.
// `sums` [query_heads, sums_stride] and `states` [query_heads] are filled.
template <class Kv>
static void decode_item(const AttentionArguments& a, const Item& item, const Item* following, float* space,
                        float* sums, int sums_stride, RowState* states) {
#ifdef PAGEFLEET_WORD_DOT
  // What only queries in float32 and float16 read by way of floats isn't worth compiling for every number of rows.
  constexpr int ROWS = Kv::BYTES == 1 && !Kv::DOTS ? 1 : DECODE_ROWS;
#else
  constexpr int ROWS = DECODE_ROWS;
#endif
  const int row = item.row, begin = item.begin, end = item.end;
  const int group = a.query_heads / a.kv_heads, stride = spread_stride<Kv>(a.key_size);
  float *queries = space, *scores = queries + a.query_heads * stride;
  float *query = scores + a.query_heads * DECODE_TILE, *shrink = query + MAX_SIZE + 2 * L;
  const char* q = a.query + a.first_token[row] * a.query_token_stride;
  for (int h = 0; h < a.query_heads; ++h) {
    read_query<Kv>(q + h * a.query_head_stride, a.query_type, a.key_size, query);
    spread_query<Kv>(query, a.key_size, queries + h * stride);
    states[h] = RowState();
  }
  memset(sums, 0, sizeof(float) * a.query_heads * sums_stride);

  Offsets tiles[2];
  int tile = begin / L * L;
  fill_tile(a, item, tile, tiles[0]);
  for (int number = 0; tile < end; tile += DECODE_TILE, ++number) {
    const Offsets& now = tiles[number & 1];
    Offsets& next = tiles[~number & 1];
    const int width = up(end - tile < DECODE_TILE ? end - tile : DECODE_TILE, L);
    if (tile + DECODE_TILE < end)
      fill_tile(a, item, tile + DECODE_TILE, next);
    else if (following)
      fill_tile(a, *following, following->begin / L * L, next);
    else
      next = now;
    for (int c = 0; c < width; c += L) {
      for (int h = 0; h < a.kv_heads; ++h) {
        const char* keys = a.key + h * a.key_head_stride;
        by_rows<ROWS>(group, [&](auto rows, int r) {
          constexpr int R = decltype(rows)::value;
          const int first = h * group + r;
          score_keys<Kv, R>(keys, now.key + c, next.key + c, queries + first * stride, stride, a.key_size,
                            scores + first * DECODE_TILE + c, DECODE_TILE);
        });
      }
    }
    TileScales scales;
    for (int h = 0; h < a.query_heads; ++h) {
      float* s = scores + h * DECODE_TILE;
      if constexpr (Kv::SCALED)
        if (h % group == 0) scales.read(a, now, h / group, width);
      shrink[h] = softmax_tile(s, width, begin - tile, end - 1 - tile, a.scale, a.softcap,
                               Kv::SCALED ? &scales : nullptr, states[h]);
#ifdef PAGEFLEET_WORD_DOT
      if constexpr (Kv::DOTS) split_tile<Kv>(s, width);
#endif
#ifdef PAGEFLEET_BF16_DOT
      if constexpr (Kv::PAIRS)
        for (int c = 0; c < width; c += 2 * L)
          store_words(s + c / 2, narrow_pairs(load(s + c), c + L < width ? load(s + c + L) : vf{}));
#endif
    }
    for (int h = 0; h < a.kv_heads; ++h) {
      const char* values = a.value + h * a.value_head_stride;
      by_rows<ROWS>(group, [&](auto rows, int r) {
        constexpr int R = decltype(rows)::value;
        const int first = h * group + r;
        add_all_values<Kv, R>(values, now.value, next.value, width, scores + first * DECODE_TILE, DECODE_TILE, shrink + first,
                              sums + first * sums_stride, sums_stride, a.value_size);
      });
    }
  }
}

// Put the parts of a row's context together, in their order.
PAGEFLEET_INLINE void merge_parts(int parts, int heads, const float* sums, int sums_stride, const RowState* states,
                               float* merged, RowState* merged_states) {
  for (int h = 0; h < heads; ++h) {
    RowState whole;
    for (int i = 0; i < parts; ++i)
      if (states[i * heads + h].best > whole.best) whole.best = states[i * heads + h].best;
    float* out = merged + h * sums_stride;
    memset(out, 0, sizeof(float) * sums_stride);
    for (int i = 0; i < parts; ++i) {
      const RowState& part = states[i * heads + h];
      const float factor = exp2_negative(all(part.best - whole.best))[0];
      whole.total += part.total * factor;
      const float* in = sums + (int64_t(i) * heads + h) * sums_stride;
      for (int d = 0; d < sums_stride; d += L) store(out + d, load(out + d) + load(in + d) * factor);
    }
    merged_states[h] = whole;
  }
}

}  // namespace pagefleet

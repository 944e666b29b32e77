// Many queries of a row: a tile of keys and values is brought into the multiplication's order once, for all queries of
// the work item, and both products are the same small matrix multiplication.
#pragma once

#include "decode.h"

namespace pagefleet {

constexpr int PREFILL_ROWS = 6;  // queries in registers
#if defined(__aarch64__)
constexpr int PANEL_VECTORS = 4;
#else
constexpr int PANEL_VECTORS = L == 16 ? 4 : 2;
#endif
constexpr int PANEL = PANEL_VECTORS * L;

// acc[r][n] += left[r][k] · right[k][n] over `steps`; with PAIRS each step is two terms.
template <bool PAIRS, int R, int N>
PAGEFLEET_INLINE void multiply(const float* left, int left_stride, const float* right, int right_stride, int steps,
                            vf (&acc)[R][N]) {
  for (int k = 0; k < steps; ++k) {
    vf b[N];
    for (int n = 0; n < N; ++n) b[n] = load(right + int64_t(k) * right_stride + n * L);
    for (int r = 0; r < R; ++r) {
#ifdef PAGEFLEET_BF16_DOT
      if constexpr (PAIRS) {
        vu a = all_words(((const uint32_t*)left)[r * left_stride + k]);
        for (int n = 0; n < N; ++n) acc[r][n] = dot_pairs(acc[r][n], (vu)b[n], a);
      } else
#endif
      {
        vf a = all(left[r * left_stride + k]);
        for (int n = 0; n < N; ++n) acc[r][n] += a * b[n];
      }
    }
  }
}

// The keys of `width` positions as panels [width / PANEL][query_stride][PANEL].
template <class Kv>
PAGEFLEET_INLINE void pack_keys(const char* keys, const int64_t* offsets, int width, int key_size, float* packed) {
  const int words = key_size / Kv::PER_WORD, steps = query_stride<Kv>(key_size);
  for (int c = 0; c < width; c += L) {
    float* panel = packed + c / PANEL * PANEL * steps + c % PANEL;
    for (int w = 0; w < words; w += L) {
      vu t[L];
      PAGEFLEET_UNROLL
      for (int i = 0; i < L; ++i) t[i] = load_words(keys + offsets[c + i] + 4 * w, words - w);
      transpose(t);
      PAGEFLEET_UNROLL
      for (int j = 0; j < L; ++j) {
        if constexpr (Kv::PAIRS && Kv::PER_WORD == 2) {
          store_words(panel + (w + j) * PANEL, t[j]);
#ifdef PAGEFLEET_BF16_DOT
        } else if constexpr (Kv::PAIRS) {
          vf x[4];
          Kv::expand(t[j], x);
          for (int n = 0; n < 2; ++n)
            store_words(panel + ((w + j) * 2 + n) * PANEL, exact_pairs(x[2 * n], x[2 * n + 1]));
#endif
        } else {
          vf x[Kv::PER_WORD];
          Kv::expand(t[j], x);
          for (int n = 0; n < Kv::PER_WORD; ++n) store(panel + ((w + j) * Kv::PER_WORD + n) * PANEL, x[n]);
        }
      }
    }
  }
}

// The values of `width` positions as rows of floats, or two rows at a time as rows of pairs.
template <class Kv>
PAGEFLEET_INLINE vf some_values(const char* p, int count) {
  return count >= L ? Kv::values(p) : values_tail<Kv>(p, count);
}

template <class Kv>
PAGEFLEET_INLINE void pack_values(const char* values, const int64_t* offsets, int width, int size, float* packed,
                               int stride) {
#ifdef PAGEFLEET_BF16_DOT
  if constexpr (Kv::PAIRS && Kv::BYTES == 1) {
    for (int k = 0; k < width; k += 2)
      for (int d = 0; d < size; d += L)
        store_words(packed + k / 2 * stride + d, exact_pairs(some_values<Kv>(values + offsets[k] + d, size - d),
                                                             some_values<Kv>(values + offsets[k + 1] + d, size - d)));
    return;
  } else if constexpr (Kv::PAIRS) {
    for (int k = 0; k < width; k += 2)
      for (int d = 0; d < size; d += 2 * L) {
        vu x = load_words(values + offsets[k] + 2 * d, (size - d) / 2);
        vu y = load_words(values + offsets[k + 1] + 2 * d, (size - d) / 2);
        store_words(packed + k / 2 * stride + d, zip_low_halves(x, y));
        store_words(packed + k / 2 * stride + d + L, zip_high_halves(x, y));
      }
    return;
  } else
#endif
    for (int k = 0; k < width; ++k)
      for (int d = 0; d < size; d += L)
        store(packed + k * stride + d, some_values<Kv>(values + offsets[k] + d * Kv::BYTES, size - d));
}

template <class Kv>
PAGEFLEET_INLINE int64_t prefill_space(const AttentionArguments& a, int queries) {
  const int dv = up(a.value_size, 2 * L), dk = query_stride<Kv>(a.key_size);
  return int64_t(queries) * (dk + dv) + PREFILL_TILE * (dk + dv) + PREFILL_ROWS * PREFILL_TILE +
         queries * (sizeof(RowState) / sizeof(float));
}

// The queries of a work item and what they have gathered; `first` is the item's first token, at `position`.
struct PrefillQueries {
  const float* query;  // [count, query_stride]
  float* sums;         // [count, sums_stride]
  RowState* states;    // [count]
  int count, group, position, query_stride, sums_stride;

  int position_of(int r) const { return position + r / group; }
};

PAGEFLEET_INLINE int begin_of(const AttentionArguments& a, int position) {
  return a.window && position + 1 > a.window ? position + 1 - a.window : 0;
}

// Both products of all queries with a tile of packed keys and values, by the kind of the products alone.
template <bool PAIRS>
static void multiply_tile(const AttentionArguments& a, const PrefillQueries& q, int tile, int width, const float* keys,
                          const float* values, float* scores, const TileScales* scales) {
  constexpr int STEP = PAIRS ? 2 : 1;  // positions in a step of the second product, and vectors that belong together
  const int dk = q.query_stride, dv = q.sums_stride;
  by_rows<PREFILL_ROWS>(q.count, [&](auto rows, int r) {
    constexpr int R = decltype(rows)::value;
    const int from_position = q.position_of(r), to_position = q.position_of(r + R - 1);
    if (tile > to_position || tile + width <= begin_of(a, from_position)) return;
    const int seen = up(to_position + 1 - tile < width ? to_position + 1 - tile : width, PANEL);
    for (int c = 0; c < seen; c += PANEL) {
      vf acc[R][PANEL_VECTORS] = {};
      multiply<PAIRS>(q.query + int64_t(r) * dk, dk, keys + c * dk, PANEL, dk, acc);
      for (int i = 0; i < R; ++i)
        for (int n = 0; n < PANEL_VECTORS; ++n) store(scores + i * PREFILL_TILE + c + n * L, acc[i][n]);
    }
    float shrink[R];
    for (int i = 0; i < R; ++i) {
      float* s = scores + i * PREFILL_TILE;
      const int p = q.position_of(r + i);
      shrink[i] = softmax_tile(s, seen, begin_of(a, p) - tile, p - tile, a.scale, a.softcap, scales, q.states[r + i]);
#ifdef PAGEFLEET_BF16_DOT
      if constexpr (PAIRS)
        for (int c = 0; c < seen; c += 2 * L) store_words(s + c / 2, narrow_pairs(load(s + c), load(s + c + L)));
#endif
    }
    const auto add = [&](auto vectors, int d) {
      constexpr int N = decltype(vectors)::value;
      vf acc[R][N];
      for (int i = 0; i < R; ++i)
        for (int n = 0; n < N; ++n) acc[i][n] = load(q.sums + int64_t(r + i) * dv + d + n * L) * shrink[i];
      multiply<PAIRS>(scores, PREFILL_TILE, values + d, dv, seen / STEP, acc);
      for (int i = 0; i < R; ++i)
        for (int n = 0; n < N; ++n) store(q.sums + int64_t(r + i) * dv + d + n * L, acc[i][n]);
    };
    int d = 0;
    for (; d + PANEL <= dv; d += PANEL) add(std::integral_constant<int, PANEL_VECTORS>(), d);
    for (; d < a.value_size; d += STEP * L) add(std::integral_constant<int, STEP>(), d);
  });
}

// Attend tokens [from, to) of the row to their context, the query heads of one key-value head.
template <class Kv>
static void prefill_item(const AttentionArguments& a, int row, int head, int from, int to, float* space) {
  const int group = a.query_heads / a.kv_heads, count = (to - from) * group;
  const int dk = query_stride<Kv>(a.key_size), dv = up(a.value_size, 2 * L);
  const int32_t* table = a.tables + a.table_start[row];
  const int first_token = a.first_token[row];
  const int position = a.context[row] - (a.first_token[row + 1] - first_token) + from;
  float *query = space, *sums = query + int64_t(count) * dk, *keys = sums + int64_t(count) * dv;
  float *values = keys + PREFILL_TILE * dk, *scores = values + PREFILL_TILE * dv;
  const PrefillQueries q{query, sums, (RowState*)(scores + PREFILL_ROWS * PREFILL_TILE), count, group, position, dk, dv};
  const auto address = [&](int r, int64_t token_stride, int64_t head_stride) {
    return (first_token + from + r / group) * token_stride + (head * group + r % group) * head_stride;
  };

  for (int r = 0; r < count; ++r) {
    read_query<Kv>(a.query + address(r, a.query_token_stride, a.query_head_stride), a.query_type, a.key_size,
                   query + int64_t(r) * dk);
    q.states[r] = RowState();
  }
  memset(sums, 0, sizeof(float) * count * dv);

  const int first = begin_of(a, position), last = q.position_of(count - 1);
  Offsets offsets;
  TileScales scales;
  for (int tile = first / PREFILL_TILE * PREFILL_TILE; tile <= last; tile += PREFILL_TILE) {
    const int width = up(last + 1 - tile < PREFILL_TILE ? last + 1 - tile : PREFILL_TILE, PANEL);
    offsets.fill(a, table, tile, width, first, last);
    pack_keys<Kv>(a.key + head * a.key_head_stride, offsets.key, width, a.key_size, keys);
    pack_values<Kv>(a.value + head * a.value_head_stride, offsets.value, width, a.value_size, values, dv);
    if constexpr (Kv::SCALED) scales.read(a, offsets, head, width);
    multiply_tile<Kv::PAIRS>(a, q, tile, width, keys, values, scores, Kv::SCALED ? &scales : nullptr);
  }
  for (int r = 0; r < count; ++r) {
    const float* sink = a.sinks ? a.sinks + head * group + r % group : nullptr;
    write_output<Kv>(sums + int64_t(r) * dv, finish(q.states[r], sink) * a.output_factor, a.query_type, a.value_size,
                     a.out + address(r, a.out_token_stride, a.out_head_stride));
  }
}

}  // namespace pagefleet

// What decode and prefill share: the arguments, how a KV element type is read, and one row's online softmax.
#pragma once

#include "vector.h"

namespace pagefleet {

enum Type : int32_t { FLOAT32 = 0, BFLOAT16 = 1, FLOAT16 = 2 };

// Mirrored in paged_attention/cpu.py. Strides count bytes; heads of a token lie one behind the other.
struct AttentionArguments {
  const char* query;
  const char* key;
  const char* value;
  char* out;
  const float* sinks;          // [query_heads] or null
  const int32_t* tables;       // the rows' block tables, one behind the other
  const int64_t* table_start;  // [rows] where a row's table begins
  const int32_t* first_token;  // [rows + 1]
  const int32_t* context;      // [rows] positions up to and including the row's last query
  int64_t query_token_stride, query_head_stride;
  int64_t out_token_stride, out_head_stride;
  int64_t key_block_stride, key_token_stride, key_head_stride;
  int64_t value_block_stride, value_token_stride, value_head_stride;
  int32_t rows, query_heads, kv_heads, key_size, value_size, block_size;
  int32_t window;  // positions seen, the own one included; 0 is all
  int32_t query_type, kv_type, threads;
  float scale, softcap;  // softcap 0 is none
};

constexpr int MAX_SIZE = 256;     // largest head size
constexpr int SPLIT = 256;        // positions of a decode work item; fixed, so that results don't depend on batch mates
constexpr int DECODE_TILE = 64;   // positions whose scores are held at a time
constexpr int PREFILL_TILE = 128;
constexpr float NOTHING = -1e30f;  // a maximum before any score; finite, so that differences are

static inline int up(int x, int multiple) { return (x + multiple - 1) / multiple * multiple; }

// --- reading queries and writing outputs ---

static inline vf load_as_float(const char* p, int type) {
  if (type == BFLOAT16) return widen_bf16(*(const vh_any*)p);
  if (type == FLOAT16) return widen_f16(*(const vh_any*)p);
  return load((const float*)p);
}

static inline void read_floats(const char* from, int type, int count, float* to) {
  const int bytes = type == FLOAT32 ? 4 : 2;
  int i = 0;
  for (; i + L <= count; i += L) store(to + i, load_as_float(from + i * bytes, type));
  if (i < count) {
    char tail[4 * L] = {};
    memcpy(tail, from + i * bytes, (count - i) * bytes);
    store(to + i, load_as_float(tail, type));
  }
}

static inline void write_floats(const float* from, int type, int count, char* to) {
  if (type == FLOAT32) {
    memcpy(to, from, 4 * count);
    return;
  }
  int i = 0;
  for (; i < count; i += L) {
    vh narrow = type == BFLOAT16 ? narrow_bf16(load(from + i)) : narrow_f16(load(from + i));
    if (i + L <= count)
      *(vh_any*)(to + 2 * i) = narrow;
    else
      memcpy(to + 2 * i, &narrow, 2 * (count - i));
  }
}

// --- reading keys and values: a row of words (32 bits each) is the common form ---
//
// Keys of L positions are transposed word by word; a policy says what a word of L keys gives to the scores.
// PER_WORD elements lie in a word; queries lie as floats, or as the same pairs of bfloat16.

struct Float32 {
  static constexpr int BYTES = 4, PER_WORD = 1;
  static constexpr bool PAIRS = false;
  static inline void expand(vu word, vf (&x)[1]) { x[0] = (vf)word; }
  static inline vf values(const char* p) { return load((const float*)p); }
};

struct BFloat16 {
  static constexpr int BYTES = 2, PER_WORD = 2;
  static constexpr bool PAIRS = false;
  static inline void expand(vu word, vf (&x)[2]) { x[0] = (vf)(word << 16), x[1] = (vf)(word & 0xffff0000u); }
  static inline vf values(const char* p) { return widen_bf16(*(const vh_any*)p); }
};

struct Float16 {
  static constexpr int BYTES = 2, PER_WORD = 2;
  static constexpr bool PAIRS = false;
  static inline void expand(vu word, vf (&x)[2]) { x[0] = widen_f16_words(word), x[1] = widen_f16_words(word >> 16); }
  static inline vf values(const char* p) { return widen_f16(*(const vh_any*)p); }
};

#ifdef PAGEFLEET_BF16_DOT
// Queries, keys, weights and values stay pairs of bfloat16; sums are float32. Outputs of 2 L values are kept in the
// order in which unpacking interleaves two value rows, and put right at the end.
struct BFloat16Pairs {
  static constexpr int BYTES = 2, PER_WORD = 2;
  static constexpr bool PAIRS = true;
};
#endif

// Tail of a value row: `count` elements, zero behind them.
template <class Kv>
static inline vf values_tail(const char* p, int count) {
  char tail[4 * L] = {};
  memcpy(tail, p, count * Kv::BYTES);
  return Kv::values(tail);
}

// Where the keys and values of consecutive positions lie, as byte offsets of head 0. Positions outside [first, last]
// are sent to the nearest inside: what lies in slots that no query sees is never read.
struct Offsets {
  int64_t key[PREFILL_TILE], value[PREFILL_TILE];

  void fill(const AttentionArguments& a, const int32_t* table, int begin, int count, int first, int last) {
    for (int i = 0; i < count; ++i) {
      int position = begin + i;
      position = position < first ? first : position > last ? last : position;
      int64_t block = table[position / a.block_size], token = position % a.block_size;
      key[i] = block * a.key_block_stride + token * a.key_token_stride;
      value[i] = block * a.value_block_stride + token * a.value_token_stride;
    }
  }
};

// --- one row's online softmax ---

struct RowState {
  float best = NOTHING;  // largest score so far, in units of log 2
  float total = 0;       // sum of 2^(score - best)
};

// Turn a tile of raw products into weights in place; return the factor by which earlier sums shrink.
// Only positions [first, last] of the tile are seen. `width` is a multiple of L.
static inline float softmax_tile(float* s, int width, int first, int last, float scale, float softcap, RowState& row) {
  vf best = all(row.best);
  const float factor = softcap ? softcap * LOG2E : scale * LOG2E;
  for (int i = 0; i < width; i += L) {
    vf x = load(s + i);
    x = softcap ? tanh(x * (scale / softcap)) * factor : x * factor;
    if (i < first || i + L - 1 > last) {
      vi position = lane_numbers() + i;
      vi seen = (position >= first) & (position <= last);
      x = (vf)(((vi)x & seen) | ((vi)all(-3e38f) & ~seen));
    }
    store(s + i, x);
    best = larger(x, best);
  }
  float new_best = largest(best);
  vf total{};
  for (int i = 0; i < width; i += L) {
    vf p = exp2_negative(load(s + i) - new_best);
    store(s + i, p);
    total += p;
  }
  float shrink = exp2_negative(all(row.best - new_best))[0];
  row.total = row.total * shrink + sum(total);
  row.best = new_best;
  return shrink;
}

// The factor that turns a row's sums into its output; a sink takes part in the softmax and carries no value.
static inline float finish(RowState row, const float* sink) {
  if (!sink) return 1.0f / row.total;
  float x = *sink * LOG2E;
  if (x <= row.best) return 1.0f / (row.total + exp2_negative(all(x - row.best))[0]);
  float shrink = exp2_negative(all(row.best - x))[0];
  return shrink / (row.total * shrink + 1.0f);
}

// --- sums in the order of their outputs ---

template <class Kv>
static inline void write_output(const float* sums, float factor, int type, int count, char* to) {
  float ordered[MAX_SIZE + 2 * L];
  for (int i = 0; i < count; i += Kv::PAIRS ? 2 * L : L) {
    vf x = load(sums + i) * factor;
    if constexpr (Kv::PAIRS) {
      vf y = load(sums + i + L) * factor;
      store(ordered + i, (vf)merge_groups_low((vu)x, (vu)y));
      store(ordered + i + L, (vf)merge_groups_high((vu)x, (vu)y));
    } else {
      store(ordered + i, x);
    }
  }
  write_floats(ordered, type, count, to);
}

}  // namespace pagefleet

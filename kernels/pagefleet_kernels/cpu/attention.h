// What decode and prefill share: the arguments, how a KV element type is read, and one row's online softmax.
#pragma once

#include "types.h"

namespace pagefleet {

// Mirrored in paged_attention/cpu.py. Strides count bytes; heads of a token lie one behind the other.
struct AttentionArguments {
  const char* query;
  const char* key;
  const char* value;
  char* out;
  const float* sinks;          // [query_heads] or null
  const char* key_scales;      // of int8: [blocks, kv_heads, block_size] floats
  const char* value_scales;
  const int32_t* tables;       // the rows' block tables, one behind the other
  const int64_t* table_start;  // [rows] where a row's table begins
  const int32_t* first_token;  // [rows + 1]
  const int32_t* context;      // [rows] positions up to and including the row's last query
  int64_t query_token_stride, query_head_stride;
  int64_t out_token_stride, out_head_stride;
  int64_t key_block_stride, key_token_stride, key_head_stride;
  int64_t value_block_stride, value_token_stride, value_head_stride;
  int64_t key_scale_block_stride, value_scale_block_stride;
  int32_t rows, query_heads, kv_heads, key_size, value_size, block_size;
  int32_t window;  // positions seen, the own one included; 0 is all
  int32_t query_type, kv_type, threads;
  float scale, softcap;  // softcap 0 is none
  float output_factor;   // of all values
};

constexpr int MAX_SIZE = 256;     // largest head size
constexpr int SPLIT = 512;        // positions of a decode work item; fixed, so that results don't depend on batch mates
constexpr int DECODE_TILE = 32;   // positions whose scores are held at a time
constexpr int DECODE_ROWS = 4;    // query heads of a group that share a pass over its keys and values
constexpr int PREFILL_TILE = 128;
constexpr float NOTHING = -1e30f;  // a maximum before any score; finite, so that differences are

// --- reading keys and values: a row of words (32 bits each) is the common form ---
//
// Keys of L positions are transposed word by word; a policy says what a word of L keys gives to the scores.
// PER_WORD elements lie in a word; queries lie as floats, or as the same pairs of bfloat16. SCALED: each key and value
// has a factor, which goes into its score and weight.

enum Order { AS_READ, ZIPPED, QUADS };  // in which sums of values lie until they are written

struct Numbers {
  static constexpr bool PAIRS = false, SCALED = false, DOTS = false;
  static constexpr Order ORDER = AS_READ;
};

struct Float32 : Numbers {
  static constexpr int BYTES = 4, PER_WORD = 1;
  PAGEFLEET_INLINE void expand(vu word, vf (&x)[1]) { x[0] = (vf)word; }
  PAGEFLEET_INLINE vf values(const char* p) { return load((const float*)p); }
};

struct BFloat16 : Numbers {
  static constexpr int BYTES = 2, PER_WORD = 2;
  PAGEFLEET_INLINE void expand(vu word, vf (&x)[2]) { x[0] = (vf)(word << 16), x[1] = (vf)(word & 0xffff0000u); }
  PAGEFLEET_INLINE vf values(const char* p) { return widen_bf16(*(const vh_any*)p); }
};

struct Float16 : Numbers {
  static constexpr int BYTES = 2, PER_WORD = 2;
  PAGEFLEET_INLINE void expand(vu word, vf (&x)[2]) { x[0] = widen_f16_words(word), x[1] = widen_f16_words(word >> 16); }
  PAGEFLEET_INLINE vf values(const char* p) { return widen_f16(*(const vh_any*)p); }
};

// In two steps, by way of int32: the compiler makes one step a loop over the bytes.
PAGEFLEET_INLINE vi widen_codes(const char* p) { return __builtin_convertvector(*(const vb_any*)p, vi); }

struct Int8 : Numbers {
  static constexpr int BYTES = 1, PER_WORD = 4;
  static constexpr bool SCALED = true;
  PAGEFLEET_INLINE void expand(vu word, vf (&x)[4]) {
    for (int n = 0; n < 4; ++n) x[n] = __builtin_convertvector((vi)(word << (24 - 8 * n)) >> 24, vf);
  }
  PAGEFLEET_INLINE vf values(const char* p) { return __builtin_convertvector(widen_codes(p), vf); }
};

// The sign of a float above an e4m3 code's exponent and mantissa, in float32's places: 2^120 times too small.
PAGEFLEET_INLINE vf widen_e4m3(vi shifted) { return (vf)(shifted & (int32_t)0x87f00000) * 1.329227995784916e36f; }

struct Fp8 : Numbers {
  static constexpr int BYTES = 1, PER_WORD = 4;
  PAGEFLEET_INLINE void expand(vu word, vf (&x)[4]) {
    for (int n = 0; n < 4; ++n) x[n] = widen_e4m3((vi)(word << (24 - 8 * n)) >> 4);
  }
  PAGEFLEET_INLINE vf values(const char* p) { return widen_e4m3(widen_codes(p) << 20); }
};

#ifdef PAGEFLEET_BF16_DOT
// Queries, keys, weights and values stay pairs of bfloat16; sums are float32. Outputs of 2 L values are kept in the
// order in which unpacking interleaves two value rows, and put right at the end.
struct BFloat16Pairs : Numbers {
  static constexpr int BYTES = 2, PER_WORD = 2;
  static constexpr bool PAIRS = true;
  static constexpr Order ORDER = ZIPPED;
};

// Codes become pairs of bfloat16 on their way into a tile, which is exact.
template <class Codes>
struct CodesAsPairs : Codes {
  static constexpr bool PAIRS = true;
};

PAGEFLEET_INLINE vu exact_pairs(vf first, vf second) { return ((vu)first >> 16) | ((vu)second & 0xffff0000u); }
#endif

// How many steps of a product a word of keys makes.
template <class Kv>
constexpr int STEPS_OF_WORD = Kv::PAIRS ? Kv::PER_WORD / 2 : Kv::PER_WORD;

// Each vector that is read asks for the one at its place in the next tile: spread so thin, requests don't queue up.
// Into L2, because L1 has too few outstanding misses for it.
PAGEFLEET_INLINE void prefetch(const char* p) { __builtin_prefetch(p, 0, 2); }

// Tail of a value row: `count` elements, zero behind them.
template <class Kv>
PAGEFLEET_INLINE vf values_tail(const char* p, int count) {
  char tail[4 * L] = {};
  memcpy(tail, p, count * Kv::BYTES);
  return Kv::values(tail);
}

// Where the keys and values of consecutive positions lie, as byte offsets of head 0. Positions outside [first, last]
// are sent to the nearest inside: what lies in slots that no query sees is never read.
struct Offsets {
  int64_t key[PREFILL_TILE], value[PREFILL_TILE];
  int64_t key_scale[PREFILL_TILE], value_scale[PREFILL_TILE];
  bool side_by_side[PREFILL_TILE / L];  // the scales of the L positions

  void fill(const AttentionArguments& a, const int32_t* table, int begin, int count, int first, int last) {
    int i = 0;
    while (i < count) {
      // A run ends with its block; outside [first, last] it is one position again and again.
      const int position = begin + i;
      const int inside = position < first ? first : position > last ? last : position;
      const int token = inside % a.block_size;
      const int64_t block = table[inside / a.block_size];
      const int64_t k = block * a.key_block_stride, v = block * a.value_block_stride;
      int run = position < first ? first - position : position > last ? count : a.block_size - token;
      if (position <= last && run > last + 1 - position) run = last + 1 - position;
      const int step = position == inside;
      if (run > count - i) run = count - i;
      if (a.key_scales) {
        const int64_t k_scale = block * a.key_scale_block_stride, v_scale = block * a.value_scale_block_stride;
        for (int n = 0; n < run; ++n) {
          key_scale[i + n] = k_scale + (token + step * n) * (int64_t)sizeof(float);
          value_scale[i + n] = v_scale + (token + step * n) * (int64_t)sizeof(float);
        }
      }
      for (int n = 0; n < run; ++n) {
        key[i + n] = k + (token + step * n) * a.key_token_stride;
        value[i + n] = v + (token + step * n) * a.value_token_stride;
      }
      i += run;
    }
    for (int c = 0; c < count; c += L) {
      const int from = begin + c;
      side_by_side[c / L] = from >= first && from + L - 1 <= last && from % a.block_size + L <= a.block_size;
    }
  }
};

// The scales of a head's `width` positions.
PAGEFLEET_INLINE void read_scales(const char* scales, const int64_t* offsets, const bool* side_by_side, int width,
                                  float* to) {
  for (int c = 0; c < width; c += L) {
    if (side_by_side[c / L])
      store(to + c, load((const float*)(scales + offsets[c])));
    else
      for (int i = c; i < c + L; ++i) memcpy(to + i, scales + offsets[i], sizeof(float));
  }
}

// The scales of a tile's keys and values, of one head.
struct TileScales {
  float key[PREFILL_TILE], value[PREFILL_TILE];

  void read(const AttentionArguments& a, const Offsets& offsets, int head, int width) {
    const int64_t begin = int64_t(head) * a.block_size * sizeof(float);
    read_scales(a.key_scales + begin, offsets.key_scale, offsets.side_by_side, width, key);
    read_scales(a.value_scales + begin, offsets.value_scale, offsets.side_by_side, width, value);
  }
};

// --- one row's online softmax ---

struct RowState {
  float best = NOTHING;  // largest score so far, in units of log 2
  float total = 0;       // sum of 2^(score - best)
};

// Turn a tile of raw products into weights in place; return the factor by which earlier sums shrink.
// Only positions [first, last] of the tile are seen. `width` is a multiple of L. Scales are null where there are none.
PAGEFLEET_INLINE float softmax_tile(float* s, int width, int first, int last, float scale, float softcap,
                                    const TileScales* scales, RowState& row) {
  vf best = all(row.best);
  const float factor = softcap ? softcap * LOG2E : scale * LOG2E;
  for (int i = 0; i < width; i += L) {
    vf x = load(s + i);
    if (scales) x *= load(scales->key + i);
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
    total += p;
    store(s + i, scales ? p * load(scales->value + i) : p);
  }
  float shrink = exp2_negative(all(row.best - new_best))[0];
  row.total = row.total * shrink + sum(total);
  row.best = new_best;
  return shrink;
}

// The factor that turns a row's sums into its output; a sink takes part in the softmax and carries no value.
PAGEFLEET_INLINE float finish(RowState row, const float* sink) {
  if (!sink) return 1.0f / row.total;
  float x = *sink * LOG2E;
  if (x <= row.best) return 1.0f / (row.total + exp2_negative(all(x - row.best))[0]);
  float shrink = exp2_negative(all(row.best - x))[0];
  return shrink / (row.total * shrink + 1.0f);
}

// --- sums in the order of their outputs ---

template <class Kv>
PAGEFLEET_INLINE int sums_stride(const AttentionArguments& a) {
  return up(a.value_size, Kv::ORDER == QUADS ? 4 * L : 2 * L);
}

template <class Kv>
PAGEFLEET_INLINE void write_output(const float* sums, float factor, int type, int count, char* to) {
  float ordered[MAX_SIZE + 2 * L];
  for (int i = 0; i < count; i += Kv::ORDER == QUADS ? 4 * L : Kv::ORDER == ZIPPED ? 2 * L : L) {
    vf x = load(sums + i) * factor;
    if constexpr (Kv::ORDER == QUADS) {
      const vu y = (vu)(load(sums + i + L) * factor), z = (vu)(load(sums + i + 2 * L) * factor);
      const vu last = (vu)(load(sums + i + 3 * L) * factor);
      const vu even = even_groups((vu)x, y), more_even = even_groups(z, last);
      const vu odd = odd_groups((vu)x, y), more_odd = odd_groups(z, last);
      store(ordered + i, (vf)even_groups(even, more_even));
      store(ordered + i + L, (vf)even_groups(odd, more_odd));
      store(ordered + i + 2 * L, (vf)odd_groups(even, more_even));
      store(ordered + i + 3 * L, (vf)odd_groups(odd, more_odd));
    } else if constexpr (Kv::ORDER == ZIPPED) {
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

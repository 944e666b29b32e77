// Writing keys and values to their slots, alone or with the rotation of queries and keys; moving whole pages.

#include "types.h"
#include "work.h"

namespace pagefleet {

// Mirrored in cpu/cache.py. Strides count bytes; heads of a token lie one behind the other in the pages.
struct WriteArguments {
  char* query;  // rotated in place; null where there is nothing to rotate
  const char* key;
  const char* value;
  char* key_pages;
  char* value_pages;
  const int64_t* slots;
  const char* cosine;  // [tokens, rotated]
  const char* sine;
  const float* query_norm;  // [key_size] or null: weights of a norm of each head before the rotation
  const float* key_norm;
  char* key_scales;  // [blocks, heads, block_size] floats of int8 pages
  char* value_scales;
  int64_t query_token_stride, query_head_stride;
  int64_t key_token_stride, key_head_stride, value_token_stride, value_head_stride;
  int64_t key_block_stride, key_slot_stride, value_block_stride, value_slot_stride;
  int64_t key_scale_block_stride, value_scale_block_stride;
  int64_t angle_stride;
  int64_t num_slots;
  int32_t tokens, query_heads, kv_heads, key_size, value_size, rotated, block_size;
  int32_t type, page_type, angle_type, threads;
  float epsilon, inverse_key_scale, inverse_value_scale;  // the scales are of a layer's fp8 pages
};

constexpr int MOST_VALUES = 256;  // of a head

static void normalise(float* x, int size, const float* weights, float epsilon) {
  vf squares{};
  for (int i = 0; i < size; i += L) squares += load(x + i) * load(x + i);
  const float factor = 1.0f / __builtin_sqrtf(sum(squares) / size + epsilon);
  for (int i = 0; i < size; ++i) x[i] *= factor * weights[i];
}

// The first half of the rotated part turns against its second half.
static void rotate(float* x, const float* cosine, const float* sine, int rotated) {
  const int half = rotated / 2;
  int i = 0;
  for (; i + L <= half; i += L) {
    vf a = load(x + i), b = load(x + half + i);
    store(x + i, a * load(cosine + i) - b * load(sine + i));
    store(x + half + i, b * load(cosine + half + i) + a * load(sine + half + i));
  }
  for (; i < half; ++i) {
    float a = x[i], b = x[half + i];
    x[i] = a * cosine[i] - b * sine[i];
    x[half + i] = b * cosine[half + i] + a * sine[half + i];
  }
}

// Move `count` values of the type to the pages' type.
PAGEFLEET_INLINE void convert(const char* from, int type, int count, char* to, int page_type) {
  if (type == page_type) {
    memcpy(to, from, count * bytes_of(type));
    return;
  }
  for (int i = 0; i < count; i += L)
    store_some(to + i * bytes_of(page_type), page_type, count - i,
               load_some(from + i * bytes_of(type), type, count - i));
}

// --- codes in eight bits: the meaning is in quantised_kv/reference.py ---

PAGEFLEET_INLINE void store_some_codes(char* p, int count, vi codes) {
  vb narrow = __builtin_convertvector(codes, vb);
  if (count >= L)
    *(vb_any*)p = narrow;
  else
    memcpy(p, &narrow, count);
}

// Round to e4m3, to nearest even; what is too large becomes the largest number.
PAGEFLEET_INLINE vi narrow_e4m3(vf x) {
  vi bits = (vi)x & 0x7fffffff, sign = (vi)((vu)x >> 24) & 0x80;
  vf size = (vf)bits > 448.0f ? all(448.0f) : (vf)bits;
  bits = (vi)size;
  // Below 2^-6 codes count multiples of 2^-9: adding 2^14 rounds to those and leaves the count in the low bits.
  vi small = (vi)(size + 16384.0f) - 0x46800000;
  vi normal = ((bits + 0x7ffff + ((bits >> 20) & 1)) >> 20) - (120 << 3);
  vi code = bits < (121 << 23) ? small : normal;
  return (x == x ? code : (vi)all_words(0x7f)) | sign;
}

// A row's codes and its scale; a number that isn't finite makes the scale not a number.
static void write_int8(const char* from, int type, int count, char* to, float* scale) {
  vf most{}, broken{};
  for (int i = 0; i < count; i += L) {
    vf x = load_some(from + i * bytes_of(type), type, count - i);
    most = larger((vf)((vi)x & 0x7fffffff), most);
    broken += x * 0.0f;
  }
  const float largest_size = largest(most), inverse = largest_size > 0 ? 127.0f / largest_size : 0.0f;
  *scale = largest_size / 127.0f + sum(broken);
  for (int i = 0; i < count; i += L)
    store_some_codes(to + i, count - i,
                     round_to_int(load_some(from + i * bytes_of(type), type, count - i) * inverse));
}

static void write_fp8(const char* from, int type, int count, char* to, float inverse) {
  for (int i = 0; i < count; i += L)
    store_some_codes(to + i, count - i,
                     narrow_e4m3(load_some(from + i * bytes_of(type), type, count - i) * inverse));
}

// --- a token ---

// Where a token's keys or values go, with what turns them into codes.
struct Place {
  char* row;
  int size, page_type;
  char* scales;  // of int8: the block's, at the token's place
  int scales_head_stride;
  float inverse;  // of fp8

  void write(int head, const char* from, int type) const {
    char* to = row + head * size * bytes_of(page_type);
    if (page_type == INT8) return write_int8(from, type, size, to, (float*)(scales + head * scales_head_stride));
    if (page_type == FP8) return write_fp8(from, type, size, to, inverse);
    convert(from, type, size, to, page_type);
  }
};

static void write_token(const WriteArguments& a, int64_t token) {
  const int64_t block = a.slots[token] / a.block_size, slot = a.slots[token] % a.block_size;
  const int scale = sizeof(float), head_stride = a.block_size * scale;
  const Place keys{a.key_pages + block * a.key_block_stride + slot * a.key_slot_stride, a.key_size, a.page_type,
                   a.key_scales + block * a.key_scale_block_stride + slot * scale, head_stride, a.inverse_key_scale};
  const Place values{a.value_pages + block * a.value_block_stride + slot * a.value_slot_stride, a.value_size,
                     a.page_type, a.value_scales + block * a.value_scale_block_stride + slot * scale, head_stride,
                     a.inverse_value_scale};
  const char *key = a.key + token * a.key_token_stride, *value = a.value + token * a.value_token_stride;
  for (int h = 0; h < a.kv_heads; ++h) values.write(h, value + h * a.value_head_stride, a.type);
  if (!a.query) {
    for (int h = 0; h < a.kv_heads; ++h) keys.write(h, key + h * a.key_head_stride, a.type);
    return;
  }
  float cosine[MOST_VALUES + L], sine[MOST_VALUES + L], x[MOST_VALUES + L];
  read_floats(a.cosine + token * a.angle_stride, a.angle_type, a.rotated, cosine);
  read_floats(a.sine + token * a.angle_stride, a.angle_type, a.rotated, sine);
  char* query = a.query + token * a.query_token_stride;
  for (int h = 0; h < a.query_heads; ++h) {
    read_floats(query + h * a.query_head_stride, a.type, a.key_size, x);
    if (a.query_norm) normalise(x, a.key_size, a.query_norm, a.epsilon);
    rotate(x, cosine, sine, a.rotated);
    write_floats(x, a.type, a.key_size, query + h * a.query_head_stride);
  }
  for (int h = 0; h < a.kv_heads; ++h) {
    read_floats(key + h * a.key_head_stride, a.type, a.key_size, x);
    if (a.key_norm) normalise(x, a.key_size, a.key_norm, a.epsilon);
    rotate(x, cosine, sine, a.rotated);
    keys.write(h, (const char*)x, FLOAT32);
  }
}

// Copy without the cache where pages are large: what is moved isn't read soon.
static void copy_bytes(char* to, const char* from, int64_t bytes) {
#if defined(__AVX2__)
  if (bytes >= 4096 && (uintptr_t)to % 32 == 0) {
    int64_t i = 0;
    for (; i + 128 <= bytes; i += 128) {
      __m256i x[4];
      for (int n = 0; n < 4; ++n) x[n] = _mm256_loadu_si256((const __m256i*)(from + i + 32 * n));
      for (int n = 0; n < 4; ++n) _mm256_stream_si256((__m256i*)(to + i + 32 * n), x[n]);
    }
    _mm_sfence();
    memcpy(to + i, from + i, bytes - i);
    return;
  }
#endif
  memmove(to, from, bytes);
}

}  // namespace pagefleet

// Returns the number of the first token whose slot isn't there, before anything is written; -1 where all are.
PAGEFLEET_API int64_t pagefleet_write(const pagefleet::WriteArguments* a) {
  for (int64_t i = 0; i < a->tokens; ++i)
    if (a->slots[i] < 0 || a->slots[i] >= a->num_slots) return i;
  const int64_t heads = a->kv_heads * (a->key_size + a->value_size) + (a->query ? a->query_heads * a->key_size : 0);
  pagefleet::share(a->tokens, a->tokens * heads * 4, a->threads, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) pagefleet::write_token(*a, i);
  });
  return -1;
}

// Copy row sources[i] of `from` to row targets[i] of `to`, in order; every thread copies its share of each row, so
// that a row may be a target first and a source later. Null indices stand for i.
PAGEFLEET_API void pagefleet_move_pages(char* to, const int64_t* targets, const char* from, const int64_t* sources,
                                        int64_t count, int64_t row_bytes, int32_t threads) {
  const int64_t lines = (row_bytes + 63) / 64;
  pagefleet::share(lines, count * row_bytes, threads, [&](int64_t begin, int64_t end) {
    const int64_t first = begin * 64, bytes = (end * 64 < row_bytes ? end * 64 : row_bytes) - first;
    for (int64_t i = 0; i < count; ++i)
      pagefleet::copy_bytes(to + (targets ? targets[i] : i) * row_bytes + first,
                            from + (sources ? sources[i] : i) * row_bytes + first, bytes);
  });
}

// The types of activations and of the cache, read as floats and written from them.
#pragma once

#include "vector.h"

namespace pagefleet {

// Mirrored in arguments.py.
enum Type : int32_t { FLOAT32 = 0, BFLOAT16 = 1, FLOAT16 = 2, INT8 = 3, FP8 = 4 };  // the last two in pages only

// Call f with the type as a constant, so that loops don't ask for it again and again.
template <class F>
PAGEFLEET_INLINE void with_type(int type, F&& f) {
  if (type == FLOAT32) return f(std::integral_constant<int, FLOAT32>());
  if (type == BFLOAT16) return f(std::integral_constant<int, BFLOAT16>());
  f(std::integral_constant<int, FLOAT16>());
}

PAGEFLEET_INLINE int bytes_of(int type) { return type == FLOAT32 ? 4 : type < INT8 ? 2 : 1; }

PAGEFLEET_INLINE int up(int x, int multiple) { return (x + multiple - 1) / multiple * multiple; }

PAGEFLEET_INLINE vf load_as_float(const char* p, int type) {
  if (type == BFLOAT16) return widen_bf16(*(const vh_any*)p);
  if (type == FLOAT16) return widen_f16(*(const vh_any*)p);
  return load((const float*)p);
}

PAGEFLEET_INLINE void read_floats(const char* from, int type, int count, float* to) {
  const int bytes = bytes_of(type);
  int i = 0;
  for (; i + L <= count; i += L) store(to + i, load_as_float(from + i * bytes, type));
  if (i < count) {
    char tail[4 * L] = {};
    memcpy(tail, from + i * bytes, (count - i) * bytes);
    store(to + i, load_as_float(tail, type));
  }
}

PAGEFLEET_INLINE void write_floats(const float* from, int type, int count, char* to) {
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

// The first `count` values at p as a vector, zero behind them; never reads past them.
PAGEFLEET_INLINE vf load_some(const char* p, int type, int count) {
  if (count >= L) return load_as_float(p, type);
  char tail[4 * L] = {};
  memcpy(tail, p, count * bytes_of(type));
  return load_as_float(tail, type);
}

PAGEFLEET_INLINE void store_some(char* p, int type, int count, vf x) {
  if (type == FLOAT32) {
    if (count >= L) return store((float*)p, x);
    memcpy(p, &x, 4 * count);
    return;
  }
  vh narrow = type == BFLOAT16 ? narrow_bf16(x) : narrow_f16(x);
  if (count >= L)
    *(vh_any*)p = narrow;
  else
    memcpy(p, &narrow, 2 * count);
}

}  // namespace pagefleet

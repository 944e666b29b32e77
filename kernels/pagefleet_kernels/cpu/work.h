// How functions are seen from outside, and how work is shared among threads.
#pragma once

#include <cstdint>

#define PAGEFLEET_API extern "C" __attribute__((visibility("default")))

namespace pagefleet {

// Less than this many bytes isn't worth waking a second thread.
constexpr int64_t WAKING_BYTES = 128 << 10;

// Call f(begin, end) on equal shares of [0, count).
template <class F>
static inline void share(int64_t count, int64_t bytes, int threads, F&& f) {
  if (threads == 1 || bytes < WAKING_BYTES || count == 1) return f(int64_t(0), count);
#pragma omp parallel for num_threads(threads) schedule(static)
  for (int t = 0; t < threads; ++t) f(count * t / threads, count * (t + 1) / threads);
}

}  // namespace pagefleet

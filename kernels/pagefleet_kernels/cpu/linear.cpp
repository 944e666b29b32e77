// Linear layers: y = x · weightᵀ + bias, the weight packed once in the order in which it is read. Each row's sums run
// over the inputs in order, whatever other rows there are, so a row's result doesn't depend on its batch.

#include <algorithm>

#include "prefill.h"
#include "work.h"

namespace pagefleet {

#if defined(__AVX512F__) && defined(__AVX512BW__)
constexpr int LINEAR_ROWS = 8;  // rows in registers
#else
constexpr int LINEAR_ROWS = 4;
#endif
constexpr int LINEAR_VECTORS = 3;
constexpr int LINEAR_PANEL = LINEAR_VECTORS * L;  // outputs that are computed together
constexpr int LINEAR_STEPS = 1024;                // words of input at a time, so that a panel's part stays in L2

// Mirrored in prepacked_linear/cpu.py.
struct LinearArguments {
  const char* x;
  const float* packed;  // [panels][words][LINEAR_PANEL], a word is a float or two bfloat16
  const float* bias;    // [outputs] or null
  char* out;
  int64_t x_stride, out_stride;  // bytes
  int64_t rows;
  int32_t inputs, outputs, type, threads;
};

// acc += left · right, the weights pairs of bfloat16 that are widened on the way; left are floats.
template <int R, int N>
PAGEFLEET_INLINE void multiply_widened(const float* left, int64_t left_stride, const float* right, int steps,
                                       vf (&acc)[R][N]) {
  for (int k = 0; k < steps; ++k) {
    vf low[N], high[N];
    for (int n = 0; n < N; ++n) {
      vf both[2];
      BFloat16::expand(load_words(right + int64_t(k) * LINEAR_PANEL + n * L), both);
      low[n] = both[0], high[n] = both[1];
    }
    for (int r = 0; r < R; ++r) {
      const vf a = all(left[r * left_stride + 2 * k]), b = all(left[r * left_stride + 2 * k + 1]);
      for (int n = 0; n < N; ++n) acc[r][n] += a * low[n], acc[r][n] += b * high[n];
    }
  }
}

template <bool NARROW, int R>
static void linear_block(const LinearArguments& a, const float* panel, int panel_number, int64_t row) {
  const int words = NARROW ? a.inputs / 2 : a.inputs;
  vf acc[R][LINEAR_VECTORS] = {};
#ifdef PAGEFLEET_BF16_DOT
  constexpr bool WIDENED = false;
#else
  constexpr bool WIDENED = NARROW;
#endif
  for (int w = 0; w < words; w += LINEAR_STEPS) {
    const int steps = std::min(LINEAR_STEPS, words - w);
    const float* right = panel + int64_t(w) * LINEAR_PANEL;
    const char* x = a.x + row * a.x_stride + 4 * w;
    if constexpr (WIDENED) {
      float wide[R * 2 * LINEAR_STEPS];
      for (int r = 0; r < R; ++r) read_floats(x + r * a.x_stride, BFLOAT16, 2 * steps, wide + r * 2 * LINEAR_STEPS);
      multiply_widened(wide, 2 * LINEAR_STEPS, right, steps, acc);
    } else {
      multiply<NARROW>((const float*)x, a.x_stride / 4, right, LINEAR_PANEL, steps, acc);
    }
  }
  for (int r = 0; r < R; ++r)
    for (int n = 0; n < LINEAR_VECTORS; ++n) {
      const int first = panel_number * LINEAR_PANEL + n * L, count = a.outputs - first;
      if (count <= 0) break;
      if (a.bias) acc[r][n] += load_some((const char*)(a.bias + first), FLOAT32, count);
      store_some(a.out + (row + r) * a.out_stride + first * (NARROW ? 2 : 4), NARROW ? BFLOAT16 : FLOAT32, count,
                 acc[r][n]);
    }
}

template <bool NARROW>
static void run_linear(const LinearArguments& a) {
  const int panels = (a.outputs + LINEAR_PANEL - 1) / LINEAR_PANEL;
  const int64_t words = NARROW ? a.inputs / 2 : a.inputs, blocks = (a.rows + LINEAR_ROWS - 1) / LINEAR_ROWS;
#pragma omp parallel for num_threads(a.threads) schedule(dynamic)
  for (int p = 0; p < panels; ++p)
    for (int64_t b = 0; b < blocks; ++b) {
      // Blocks of like size: one of a single row costs nearly as much as a whole one.
      const int64_t row = a.rows * b / blocks, rows = a.rows * (b + 1) / blocks - row;
      by_rows<LINEAR_ROWS>((int)rows, [&](auto constant, int) {
        linear_block<NARROW, decltype(constant)::value>(a, a.packed + p * words * LINEAR_PANEL, p, row);
      });
    }
}

static void pack_panel(const char* weight, int64_t inputs, int64_t outputs, int words, int word_values, int panel,
                       float* packed) {
  const int64_t row_bytes = inputs * 4 / word_values;
  for (int n = 0; n < LINEAR_VECTORS; ++n)
    for (int w = 0; w < words; w += L) {
      vu t[L];
      for (int i = 0; i < L; ++i) {
        const int64_t row = int64_t(panel) * LINEAR_PANEL + n * L + i;
        t[i] = row < outputs ? load_words(weight + row * row_bytes + 4 * w, words - w) : vu{};
      }
      transpose(t);
      for (int j = 0; j < L && w + j < words; ++j) store_words(packed + int64_t(w + j) * LINEAR_PANEL + n * L, t[j]);
    }
}

}  // namespace pagefleet

// Floats that a packed weight takes.
PAGEFLEET_API int64_t pagefleet_packed_floats(int64_t inputs, int64_t outputs, int32_t type) {
  using namespace pagefleet;
  const int64_t words = type == FLOAT32 ? inputs : inputs / 2;
  return (outputs + LINEAR_PANEL - 1) / LINEAR_PANEL * LINEAR_PANEL * words;
}

PAGEFLEET_API void pagefleet_pack(const char* weight, int64_t inputs, int64_t outputs, int32_t type, float* packed,
                                  int32_t threads) {
  using namespace pagefleet;
  const int word_values = type == FLOAT32 ? 1 : 2, words = (int)(inputs / word_values);
  const int panels = (int)((outputs + LINEAR_PANEL - 1) / LINEAR_PANEL);
#pragma omp parallel for num_threads(threads) schedule(dynamic)
  for (int p = 0; p < panels; ++p)
    pack_panel(weight, inputs, outputs, words, word_values, p, packed + int64_t(p) * words * LINEAR_PANEL);
}

PAGEFLEET_API void pagefleet_linear(const pagefleet::LinearArguments* a) {
  if (a->type == pagefleet::FLOAT32)
    pagefleet::run_linear<false>(*a);
  else
    pagefleet::run_linear<true>(*a);
}

// Linear layers: y = x · weightᵀ + bias, the weight packed once in the order in which it is read. Each row's sums run
// over the inputs in order, whatever other rows there are, so a row's result doesn't depend on its batch. A gated layer
// is two: y = activation(x · gateᵀ) times x · factorᵀ, which saves writing and reading the products between.

#include <algorithm>
#include <atomic>

#include "activation.h"
#include "linear.h"
#include "prefill.h"
#include "work.h"

namespace pagefleet {

#if defined(__AVX512F__) && defined(__AVX512BW__)
constexpr int LINEAR_ROWS = 8;  // rows in registers
#else
constexpr int LINEAR_ROWS = 4;
#endif
constexpr int LINEAR_VECTORS = 3;
// Outputs that are computed together. A packed weight is [panels][words][LINEAR_PANEL], a word a float or two bfloat16;
// a gated one has panels of gate and factor in turn.
constexpr int LINEAR_PANEL = LINEAR_VECTORS * L;
constexpr int LINEAR_STEPS = 1024;                // words of input at a time, so that a panel's part stays in L2

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

// What is asked for while a block is computed: `bytes` of it in each of its steps.
struct Ahead {
  const char* begin;
  int bytes;
};

// acc += left · right as `multiply` does it; the panel that comes next arrives while this one is in use.
template <bool NARROW, int R, int N>
PAGEFLEET_INLINE void multiply_ahead(const float* left, int64_t left_stride, const float* right, int steps,
                                     Ahead ahead, vf (&acc)[R][N]) {
  constexpr int TOGETHER = 4;
  int k = 0;
  for (; k + TOGETHER <= steps; k += TOGETHER) {
    for (int i = 0; i < TOGETHER * ahead.bytes; i += 64) prefetch(ahead.begin + int64_t(k) * ahead.bytes + i);
    multiply<NARROW>(left + k, (int)left_stride, right + int64_t(k) * LINEAR_PANEL, LINEAR_PANEL, TOGETHER, acc);
  }
  multiply<NARROW>(left + k, (int)left_stride, right + int64_t(k) * LINEAR_PANEL, LINEAR_PANEL, steps - k, acc);
}

// acc = the products of R rows with a panel of weights.
template <bool NARROW, int R>
PAGEFLEET_INLINE void linear_products(const LinearArguments& a, const float* panel, int64_t row, Ahead ahead,
                                      vf (&acc)[R][LINEAR_VECTORS]) {
  const int words = NARROW ? a.inputs / 2 : a.inputs;
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
      multiply_ahead<NARROW>((const float*)x, a.x_stride / 4, right, steps,
                             {ahead.begin + int64_t(w) * ahead.bytes, ahead.bytes}, acc);
    }
  }
}

template <int R>
PAGEFLEET_INLINE void add_bias(const float* bias, int first, int outputs, vf (&acc)[R][LINEAR_VECTORS]) {
  for (int n = 0; n < LINEAR_VECTORS && first + n * L < outputs; ++n) {
    const vf b = load_some((const char*)(bias + first + n * L), FLOAT32, outputs - first - n * L);
    for (int r = 0; r < R; ++r) acc[r][n] += b;
  }
}

// R rows' outputs of one panel, or of a gate's and its factor's.
template <bool NARROW, int R>
static void linear_block(const LinearArguments& a, int panel, int64_t row, Ahead ahead) {
  const int64_t panel_floats = int64_t(NARROW ? a.inputs / 2 : a.inputs) * LINEAR_PANEL;
  const int first = panel * LINEAR_PANEL;
  vf acc[R][LINEAR_VECTORS] = {};
  if (a.activation < 0) {
    linear_products<NARROW>(a, (const float*)a.packed + panel * panel_floats, row, ahead, acc);
    if (a.bias) add_bias(a.bias, first, a.outputs, acc);
  } else {
    vf gate[R][LINEAR_VECTORS] = {};
    const float* packed = (const float*)a.packed + 2 * panel * panel_floats;
    linear_products<NARROW>(a, packed, row, ahead, gate);
    linear_products<NARROW>(a, packed + panel_floats, row, {ahead.begin + 4 * panel_floats, ahead.bytes}, acc);
    if (a.bias) add_bias(a.bias, first, a.outputs, gate), add_bias(a.bias + a.outputs, first, a.outputs, acc);
    for (int r = 0; r < R; ++r)
      for (int n = 0; n < LINEAR_VECTORS; ++n) acc[r][n] *= activate(gate[r][n], a.activation);
  }
  for (int r = 0; r < R; ++r)
    for (int n = 0; n < LINEAR_VECTORS && first + n * L < a.outputs; ++n)
      store_some(a.out + (row + r) * a.out_stride + (first + n * L) * (NARROW ? 2 : 4), NARROW ? BFLOAT16 : FLOAT32,
                 a.outputs - first - n * L, acc[r][n]);
}

template <bool NARROW>
static void run_linear(const LinearArguments& a) {
  const int panels = (a.outputs + LINEAR_PANEL - 1) / LINEAR_PANEL;
  const int64_t words = NARROW ? a.inputs / 2 : a.inputs, blocks = (a.rows + LINEAR_ROWS - 1) / LINEAR_ROWS;
  const int64_t item_bytes = words * LINEAR_PANEL * (a.activation < 0 ? 4 : 8);
  // A few rows leave the memory no pause in which to bring more.
  const int ahead_bytes = a.rows < LINEAR_ROWS / 2 ? 0 : int(4 * LINEAR_PANEL / blocks);
  std::atomic<int> taken{0};
  const auto run = [&] {
    int panel = taken.fetch_add(1), next = taken.fetch_add(1);
    for (; panel < panels; panel = next, next = taken.fetch_add(1)) {
      const char* ahead = (const char*)a.packed + (next < panels ? next : panel) * item_bytes;
      for (int64_t b = 0; b < blocks; ++b, ahead += words * ahead_bytes) {
        // Blocks of like size: one of a single row costs nearly as much as a whole one.
        const int64_t row = a.rows * b / blocks, rows = a.rows * (b + 1) / blocks - row;
        by_rows<LINEAR_ROWS>((int)rows, [&](auto constant, int) {
          linear_block<NARROW, decltype(constant)::value>(a, panel, row, {ahead, ahead_bytes});
        });
      }
    }
  };
#pragma omp parallel num_threads(a.threads)
  run();
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

PAGEFLEET_API int64_t pagefleet_panel_bytes(int64_t inputs, int32_t type) {
  using namespace pagefleet;
  return 4 * LINEAR_PANEL * (type == FLOAT32 ? inputs : inputs / 2);
}

// Floats that a packed weight takes.
PAGEFLEET_API int64_t pagefleet_packed_floats(int64_t inputs, int64_t outputs, int32_t type) {
  using namespace pagefleet;
  return (outputs + LINEAR_PANEL - 1) / LINEAR_PANEL * pagefleet_panel_bytes(inputs, type) / 4;
}

// Panel i of the weight becomes panel `every` * i of what begins at `packed`.
PAGEFLEET_API void pagefleet_pack(const char* weight, int64_t inputs, int64_t outputs, int32_t type, float* packed,
                                  int32_t every, int32_t threads) {
  using namespace pagefleet;
  const int word_values = type == FLOAT32 ? 1 : 2, words = (int)(inputs / word_values);
  const int panels = (int)((outputs + LINEAR_PANEL - 1) / LINEAR_PANEL);
#pragma omp parallel for num_threads(threads) schedule(dynamic)
  for (int p = 0; p < panels; ++p)
    pack_panel(weight, inputs, outputs, words, word_values, p, packed + int64_t(p) * every * words * LINEAR_PANEL);
}

PAGEFLEET_API void pagefleet_linear(const pagefleet::LinearArguments* a) {
  if (a->type == pagefleet::FLOAT32)
    pagefleet::run_linear<false>(*a);
  else
    pagefleet::run_linear<true>(*a);
}

// Linear layers on int8 codes: weights with a scale for each output, activations with one for each row, found on the
// way, both rotated before. Products are summed as integers, exactly, so neither a row's batch nor the instruction set
// changes the sum. A gated layer is two, as in linear.cpp.

#include <algorithm>
#include <atomic>
#include <limits>
#include <vector>

#include "activation.h"
#include "decode.h"
#include "linear.h"
#include "work.h"

namespace pagefleet {

#if defined(__AVX512F__) && defined(__AVX512BW__)
constexpr int INT8_ROWS = 8, INT8_VECTORS = 3;  // rows and vectors of outputs whose sums are in registers
#else
constexpr int INT8_ROWS = 4, INT8_VECTORS = 2;
#endif
constexpr int INT8_PANEL = INT8_VECTORS * L;   // outputs that are computed together
constexpr int INT8_HEADER = 2 * INT8_PANEL;    // words before a panel's codes: what sums start with, scales
constexpr int INT8_FEW_ROWS = 6;               // up to here a panel takes longer to read than to multiply
constexpr int64_t INT8_SHARED_WORK = 1 << 17;  // fewer products than this aren't worth waking a second thread
constexpr int ROTATED = 64;                    // inputs that are rotated together
// Mirrored in prepacked_linear/reference.py.
constexpr float SMALLEST_SCALE = 1e-32f;  // rows of a smaller one count as zero: its inverse would overflow

#if defined(__AVX512VNNI__) && defined(__AVX512BW__)
#define PAGEFLEET_VNNI 1  // the CPU adds four products of bytes natively: unsigned by signed
typedef uint8_t Code;
#else
typedef int16_t Code;
#endif
constexpr int FOUR = sizeof(Code);  // words of four activations' codes
typedef Code code_vector __attribute__((vector_size(sizeof(Code) * L), aligned(1), may_alias));

PAGEFLEET_INLINE int int8_words(int64_t inputs) { return up((int)inputs, ROTATED) / 4; }

// A packed weight is [panels][INT8_HEADER + words * INT8_PANEL], a word four inputs' codes; a gated one has panels of gate
// and factor in turn.
static int64_t int8_panel_words(int64_t inputs) { return INT8_HEADER + int64_t(int8_words(inputs)) * INT8_PANEL; }

struct Int8Rows {
  std::vector<uint32_t> codes;
  std::vector<float> scales;
  int stride = 0;             // words
  std::vector<float> values;  // one row's, rotated
};
// A thread keeps them between calls: fresh memory for each layer would cost page faults.
static thread_local Int8Rows thread_rows;

PAGEFLEET_INLINE vi to_nearest(vf x) {
#if defined(__AVX512F__) && defined(__AVX512BW__)
  return (vi)_mm512_cvtps_epi32((__m512)x);
#elif defined(__AVX2__)
  return (vi)_mm256_cvtps_epi32((__m256)x);
#elif defined(__x86_64__)
  return (vi)_mm_cvtps_epi32((__m128)x);
#else
  const vf magic = all(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
  return (vi)(x + magic) - (vi)magic;
#endif
}

// Each value with the one `H` lanes away: their sum in the first of the two, their difference in the second.
template <int H, int... I>
PAGEFLEET_INLINE vf sums_and_differences(vf x, std::integer_sequence<int, I...>) {
  const vi signs = {(I & H ? INT32_MIN : 0)...};
  return __builtin_shuffle(x, (vi){(I ^ H)...}) + (vf)((vi)x ^ signs);
}

// A Hadamard matrix times 64 values, eight times as long as they: what one value alone has is spread over all.
PAGEFLEET_INLINE void rotate(vf (&x)[ROTATED / L]) {
  constexpr std::make_integer_sequence<int, L> lanes;
  for (vf& v : x) {
    v = sums_and_differences<2>(sums_and_differences<1>(v, lanes), lanes);
    if constexpr (L > 4) v = sums_and_differences<4>(v, lanes);
    if constexpr (L > 8) v = sums_and_differences<8>(v, lanes);
  }
  for (int step = 1; step < ROTATED / L; step *= 2)
    for (int i = 0; i < ROTATED / L; ++i) {
      if (i & step) continue;
      const vf a = x[i], b = x[i + step];
      x[i] = a + b, x[i + step] = a - b;
    }
}

// Return the row's scale. Where a value isn't finite, neither is the scale, and the codes are 0: all results are NaN.
static float quantise_row(const char* x, int type, int inputs, float* values, uint32_t* codes) {
  const int bytes = bytes_of(type);
  vi largest{};  // without signs floats compare as integers, NaN above all
  for (int i = 0; i < inputs; i += ROTATED) {
    vf v[ROTATED / L];
    for (int n = 0; n < ROTATED / L; ++n) {
      const int first = i + n * L;
      v[n] = first < inputs ? load_some(x + first * bytes, type, inputs - first) : vf{};
    }
    rotate(v);
    for (int n = 0; n < ROTATED / L; ++n) {
      store(values + i + n * L, v[n]);
      const vi magnitude = (vi)v[n] & 0x7fffffff;
      largest = magnitude > largest ? magnitude : largest;
    }
  }
  int32_t most_bits = 0;
  for (int i = 0; i < L; ++i) most_bits = std::max(most_bits, (int32_t)largest[i]);
  float most;
  memcpy(&most, &most_bits, 4);
  const float scale = most / (8 * 127.0f);
  const bool finite = most <= std::numeric_limits<float>::max();
  const float inverse = finite && scale >= SMALLEST_SCALE ? 127.0f / most : 0.0f;
  Code* to = (Code*)codes;
  for (int i = 0; i < up(inputs, ROTATED); i += L) {
    vi code{};
    if (finite) code = to_nearest(load(values + i) * inverse);
#ifdef PAGEFLEET_VNNI
    code += 128;
#endif
    *(code_vector*)(to + i) = __builtin_convertvector(code, code_vector);
  }
  return scale;
}

static const Int8Rows& quantise_rows(const LinearArguments& a) {
  Int8Rows& rows = thread_rows;
  rows.stride = int8_words(a.inputs) * FOUR;
  if ((int64_t)rows.codes.size() < a.rows * rows.stride) rows.codes.resize(a.rows * rows.stride);
  if ((int64_t)rows.scales.size() < a.rows) rows.scales.resize(a.rows);
  share(a.rows, a.rows * a.inputs * 4, a.threads, [&](int64_t begin, int64_t end) {
    std::vector<float>& values = thread_rows.values;  // of the thread that does this share
    if ((int)values.size() < up(a.inputs, ROTATED)) values.resize(up(a.inputs, ROTATED));
    with_type(a.type, [&](auto type) {
      for (int64_t r = begin; r < end; ++r)
        rows.scales[r] = quantise_row(a.x + r * a.x_stride, decltype(type)::value, a.inputs, values.data(),
                                      rows.codes.data() + r * rows.stride);
    });
  });
  return rows;
}

// Codes of four inputs of each output in the form in which they are multiplied.
struct Weights {
  vi part[FOUR];
};

PAGEFLEET_INLINE Weights spread(vu codes) {
#ifdef PAGEFLEET_VNNI
  return {{(vi)codes}};
#else
  typedef int16_t halves __attribute__((vector_size(4 * L)));
  return {{(vi)(((halves)codes << 8) >> 8), (vi)((halves)codes >> 8)}};  // bytes 0 and 2, then 1 and 3
#endif
}

PAGEFLEET_INLINE vi add_products(vi sum, const Weights& w, const uint32_t* x) {
#ifdef PAGEFLEET_VNNI
  return (vi)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)all_words(x[0]), (__m512i)w.part[0]);
#else
  for (int i = 0; i < FOUR; ++i) {
    const vi pair = (vi)all_words(x[i]);
#if defined(__AVX512F__) && defined(__AVX512BW__)
    sum += (vi)_mm512_madd_epi16((__m512i)pair, (__m512i)w.part[i]);
#elif defined(__AVX2__)
    sum += (vi)_mm256_madd_epi16((__m256i)pair, (__m256i)w.part[i]);
#elif defined(__x86_64__)
    sum += (vi)_mm_madd_epi16((__m128i)pair, (__m128i)w.part[i]);
#else
    sum += ((pair << 16) >> 16) * ((w.part[i] << 16) >> 16) + (pair >> 16) * (w.part[i] >> 16);
#endif
  }
  return sum;
#endif
}

// What a block fetches of the panel that its thread multiplies next, so that arithmetic hides the reading. With few
// rows there is nothing to hide behind, and the CPU's own prefetching is faster.
struct NextPanel {
  const uint32_t* begin;
  int vectors;  // of each word
};

// y = the outputs of R rows for one panel of a weight.
template <int R>
PAGEFLEET_INLINE void int8_products(const LinearArguments& a, const Int8Rows& rows, const uint32_t* panel,
                                    const float* bias, int first_output, int64_t row, NextPanel next,
                                    vf (&y)[R][INT8_VECTORS]) {
  const int words = int8_words(a.inputs);
  const uint32_t *x = rows.codes.data() + row * rows.stride, *codes = panel + INT8_HEADER;
  vi sums[R][INT8_VECTORS];
  for (int r = 0; r < R; ++r)
    for (int n = 0; n < INT8_VECTORS; ++n) sums[r][n] = (vi)load_words(panel + n * L);
  for (int k = 0; k < words; ++k) {
    for (int n = 0; n < next.vectors; ++n) __builtin_prefetch(next.begin + int64_t(k) * INT8_PANEL + n * L, 0, 2);
    Weights w[INT8_VECTORS];
    for (int n = 0; n < INT8_VECTORS; ++n) w[n] = spread(load_words(codes + int64_t(k) * INT8_PANEL + n * L));
    for (int r = 0; r < R; ++r)
      for (int n = 0; n < INT8_VECTORS; ++n)
        sums[r][n] = add_products(sums[r][n], w[n], x + int64_t(r) * rows.stride + k * FOUR);
  }
  for (int n = 0; n < INT8_VECTORS; ++n) {
    const int first = first_output + n * L;
    const vf scales = (vf)load_words(panel + INT8_PANEL + n * L);
    const vf b = bias && first < a.outputs ? load_some((const char*)(bias + first), FLOAT32, a.outputs - first) : vf{};
    for (int r = 0; r < R; ++r) y[r][n] = __builtin_convertvector(sums[r][n], vf) * (scales * rows.scales[row + r]) + b;
  }
}

template <int R>
static void int8_block(const LinearArguments& a, const Int8Rows& rows, const uint32_t* panel, int first_output,
                       int64_t row, NextPanel next) {
  vf y[R][INT8_VECTORS];
  if (a.activation < 0) {
    int8_products(a, rows, panel, a.bias, first_output, row, next, y);
  } else {
    const int64_t words = int8_panel_words(a.inputs);
    vf gate[R][INT8_VECTORS];
    int8_products(a, rows, panel, a.bias, first_output, row, next, gate);
    next.begin += words;
    int8_products(a, rows, panel + words, a.bias ? a.bias + a.outputs : nullptr, first_output, row, next, y);
    for (int r = 0; r < R; ++r)
      for (int n = 0; n < INT8_VECTORS; ++n) y[r][n] *= activate(gate[r][n], a.activation);
  }
  for (int r = 0; r < R; ++r)
    for (int n = 0; n < INT8_VECTORS; ++n) {
      const int first = first_output + n * L;
      if (first < a.outputs)
        store_some(a.out + (row + r) * a.out_stride + first * bytes_of(a.type), a.type, a.outputs - first, y[r][n]);
    }
}

static void multiply_panel(const LinearArguments& a, const Int8Rows& rows, int panel, int following) {
  const int64_t words = int8_panel_words(a.inputs) * (a.activation < 0 ? 1 : 2);
  const int64_t blocks = (a.rows + INT8_ROWS - 1) / INT8_ROWS;
  const auto packed = (const uint32_t*)a.packed;
  for (int64_t b = 0; b < blocks; ++b) {
    // Blocks of like size: one of a single row costs nearly as much as a whole one.
    const int64_t row = a.rows * b / blocks, count = a.rows * (b + 1) / blocks - row;
    const int from = int(INT8_VECTORS * b / blocks), to = int(INT8_VECTORS * (b + 1) / blocks);
    const NextPanel next{packed + following * words + INT8_HEADER + from * L, a.rows > INT8_FEW_ROWS ? to - from : 0};
    by_rows<INT8_ROWS>((int)count, [&](auto constant, int) {
      int8_block<decltype(constant)::value>(a, rows, packed + panel * words, panel * INT8_PANEL, row, next);
    });
  }
}

static void run_int8_linear(const LinearArguments& a) {
  const Int8Rows& rows = quantise_rows(a);
  const int panels = (a.outputs + INT8_PANEL - 1) / INT8_PANEL;
  const int threads = a.rows * a.inputs * a.outputs < INT8_SHARED_WORK ? 1 : a.threads;
  std::atomic<int> unclaimed{0};
#pragma omp parallel num_threads(threads)
  for (int panel = unclaimed++; panel < panels;) {
    const int following = unclaimed++;
    multiply_panel(a, rows, panel, following < panels ? following : panel);
    panel = following;
  }
}

// In the order of `spread`, whose even and odd bytes lie two apart.
PAGEFLEET_INLINE vu in_order(vu codes) {
#ifdef PAGEFLEET_VNNI
  return codes;
#else
  return (codes & 0xff0000ffu) | ((codes & 0xff00u) << 8) | ((codes >> 8) & 0xff00u);
#endif
}

static void pack_int8_panel(const int8_t* codes, const float* scales, int64_t inputs, int64_t outputs, int panel,
                            uint32_t* packed) {
  for (int i = 0; i < INT8_PANEL; ++i) {
    const int64_t row = int64_t(panel) * INT8_PANEL + i;
    int32_t sum = 0;
#ifdef PAGEFLEET_VNNI
    // Activations are multiplied with 128 added to them.
    if (row < outputs)
      for (int64_t k = 0; k < inputs; ++k) sum -= 128 * codes[row * inputs + k];
#endif
    packed[i] = (uint32_t)sum;
    const float scale = row < outputs ? scales[row] : 0.0f;
    memcpy(packed + INT8_PANEL + i, &scale, 4);
  }
  for (int n = 0; n < INT8_VECTORS; ++n)
    for (int w = 0; w < inputs / 4; w += L) {
      vu t[L];
      for (int i = 0; i < L; ++i) {
        const int64_t row = int64_t(panel) * INT8_PANEL + n * L + i;
        t[i] = row < outputs ? load_words(codes + row * inputs + 4 * w) : vu{};
      }
      transpose(t);
      for (int j = 0; j < L; ++j)
        store_words(packed + INT8_HEADER + int64_t(w + j) * INT8_PANEL + n * L, in_order(t[j]));
    }
}

}  // namespace pagefleet

PAGEFLEET_API int64_t pagefleet_int8_panel_words(int64_t inputs) { return pagefleet::int8_panel_words(inputs); }

// 32-bit words that a packed weight takes.
PAGEFLEET_API int64_t pagefleet_int8_packed_words(int64_t inputs, int64_t outputs) {
  using namespace pagefleet;
  return (outputs + INT8_PANEL - 1) / INT8_PANEL * int8_panel_words(inputs);
}

// `codes` are [outputs][inputs], a multiple of ROTATED, and `scales` [outputs]. Panel i becomes panel `every` * i of what
// begins at `packed`.
PAGEFLEET_API void pagefleet_int8_pack(const int8_t* codes, const float* scales, int64_t inputs, int64_t outputs,
                                       uint32_t* packed, int32_t every, int32_t threads) {
  using namespace pagefleet;
  const int panels = (int)((outputs + INT8_PANEL - 1) / INT8_PANEL);
#pragma omp parallel for num_threads(threads) schedule(dynamic)
  for (int p = 0; p < panels; ++p)
    pack_int8_panel(codes, scales, inputs, outputs, p, packed + int64_t(p) * every * int8_panel_words(inputs));
}

PAGEFLEET_API void pagefleet_int8_linear(const pagefleet::LinearArguments* a) { pagefleet::run_int8_linear(*a); }

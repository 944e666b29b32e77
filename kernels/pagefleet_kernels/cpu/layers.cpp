// The small operations of a layer that otherwise cost a dispatch and a pass over memory for each of their steps.

#include "activation.h"
#include "work.h"

namespace pagefleet {

// out = x / rms(x) * weights; with a residual, x + residual is written there first and takes the place of x.
template <int type>
static void norm_row(const char* x, char* residual, const float* weights, char* out, int size, float epsilon) {
  constexpr int bytes = type == FLOAT32 ? 4 : 2;
  const char* source = residual ? residual : x;
  vf squares{};
  for (int i = 0; i < size; i += L) {
    vf v = load_some(x + i * bytes, type, size - i);
    if (residual) {
      v += load_some(residual + i * bytes, type, size - i);
      store_some(residual + i * bytes, type, size - i, v);
      v = load_some(residual + i * bytes, type, size - i);  // rounded, as the next layer sees it
    }
    squares += v * v;
  }
  const float factor = 1.0f / __builtin_sqrtf(sum(squares) / size + epsilon);
  for (int i = 0; i < size; i += L) {
    vf w = load_some((const char*)(weights + i), FLOAT32, size - i);
    store_some(out + i * bytes, type, size - i, load_some(source + i * bytes, type, size - i) * factor * w);
  }
}

template <int type>
static void gate_row(const char* gate, const char* up, char* out, int size, int activation) {
  constexpr int bytes = type == FLOAT32 ? 4 : 2;
  for (int i = 0; i < size; i += L) {
    vf g = load_some(gate + i * bytes, type, size - i), u = load_some(up + i * bytes, type, size - i);
    store_some(out + i * bytes, type, size - i, activate(g, activation) * u);
  }
}

}  // namespace pagefleet

PAGEFLEET_API void pagefleet_rms_norm(const char* x, int64_t x_stride, char* residual, const float* weights, char* out,
                                      int64_t rows, int32_t size, int32_t type, float epsilon, int32_t threads) {
  const int64_t row_bytes = int64_t(size) * pagefleet::bytes_of(type);
  pagefleet::share(rows, rows * row_bytes * 3, threads, [&](int64_t begin, int64_t end) {
    pagefleet::with_type(type, [&](auto constant) {
      for (int64_t i = begin; i < end; ++i)
        pagefleet::norm_row<decltype(constant)::value>(x + i * x_stride, residual ? residual + i * row_bytes : nullptr,
                                                       weights, out + i * row_bytes, size, epsilon);
    });
  });
}

// Rows of `gate_up` are a gate [size] and a factor [size]; out = activation(gate) * factor.
PAGEFLEET_API void pagefleet_gated_activation(const char* gate_up, int64_t stride, char* out, int64_t rows,
                                              int32_t size, int32_t type, int32_t activation, int32_t threads) {
  const int64_t row_bytes = int64_t(size) * pagefleet::bytes_of(type);
  pagefleet::share(rows, rows * row_bytes * 3, threads, [&](int64_t begin, int64_t end) {
    pagefleet::with_type(type, [&](auto constant) {
      for (int64_t i = begin; i < end; ++i)
        pagefleet::gate_row<decltype(constant)::value>(gate_up + i * stride, gate_up + i * stride + row_bytes,
                                                       out + i * row_bytes, size, activation);
    });
  });
}

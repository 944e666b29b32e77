// One decoder layer in one call. A step of a few rows takes less time to compute than to be called piece by piece.

#include <ctime>

#include "linear.h"
#include "types.h"
#include "work.h"

namespace pagefleet {
struct WriteArguments;
struct AttentionArguments;
}  // namespace pagefleet

PAGEFLEET_API int64_t pagefleet_write(const pagefleet::WriteArguments*);
PAGEFLEET_API void pagefleet_attention(const pagefleet::AttentionArguments*);
PAGEFLEET_API void pagefleet_rms_norm(const char* x, int64_t x_stride, char* residual, const float* weights, char* out,
                                      int64_t rows, int32_t size, int32_t type, float epsilon, int32_t threads);

namespace pagefleet {

struct Norm {
  const float* weights;  // null where the layer has no such norm
  float epsilon;
};

struct Product {
  void (*multiply)(const LinearArguments*);
  LinearArguments* arguments;
};

// Mirrored in decoder_layer/memory.py.
enum Part { NORMS, LINEARS, WRITE, ATTENTION };

// Mirrored in decoder_layer/cpu.py. Buffers are [tokens, width], dense.
struct LayerArguments {
  char* residual;  // changed in place
  char* unadded;   // what the layer before left to be added to the residual, or null; may be `left`
  char* normed;
  char* heads;  // queries, keys, values
  char* attended;
  char* projected;
  char* gated;
  char* left;
  Norm attention_norm, mlp_norm, attention_output_norm, mlp_output_norm;
  Product qkv, out, gate, down;
  const WriteArguments* write;
  const AttentionArguments* attention;
  int64_t* nanoseconds;  // of each part, counted on
  int64_t tokens;
  int32_t size, type, threads;
};

// Counts what passes until it ends as a part's.
class Timed {
 public:
  Timed(const LayerArguments& a, Part part) : counter(a.nanoseconds[part]) { counter -= now(); }
  ~Timed() { counter += now(); }

 private:
  static int64_t now() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * int64_t(1000000000) + t.tv_nsec;
  }
  int64_t& counter;
};

static void norm_rows(const LayerArguments& a, const Norm& norm, char* x, char* residual, char* out) {
  Timed timed(a, NORMS);
  pagefleet_rms_norm(x, int64_t(a.size) * bytes_of(a.type), residual, norm.weights, out, a.tokens, a.size, a.type,
                     norm.epsilon, a.threads);
}

static void multiply_rows(const LayerArguments& a, const Product& product, const char* x, char* out) {
  Timed timed(a, LINEARS);
  LinearArguments& linear = *product.arguments;
  linear.x = x, linear.out = out, linear.rows = a.tokens;
  linear.x_stride = int64_t(linear.inputs) * bytes_of(a.type);
  product.multiply(&linear);
}

static int64_t write_rows(const LayerArguments& a) {
  Timed timed(a, WRITE);
  return pagefleet_write(a.write);
}

static void attend_rows(const LayerArguments& a) {
  Timed timed(a, ATTENTION);
  pagefleet_attention(a.attention);
}

}  // namespace pagefleet

// Returns as pagefleet_write does; the layer stops there.
PAGEFLEET_API int64_t pagefleet_layer(const pagefleet::LayerArguments* layer) {
  using namespace pagefleet;
  const LayerArguments& a = *layer;
  if (a.unadded)
    norm_rows(a, a.attention_norm, a.unadded, a.residual, a.normed);
  else
    norm_rows(a, a.attention_norm, a.residual, nullptr, a.normed);
  multiply_rows(a, a.qkv, a.normed, a.heads);
  const int64_t bad = write_rows(a);
  if (bad >= 0) return bad;
  attend_rows(a);
  multiply_rows(a, a.out, a.attended, a.projected);
  if (a.attention_output_norm.weights) norm_rows(a, a.attention_output_norm, a.projected, nullptr, a.projected);
  norm_rows(a, a.mlp_norm, a.projected, a.residual, a.normed);
  multiply_rows(a, a.gate, a.normed, a.gated);
  multiply_rows(a, a.down, a.gated, a.left);
  if (a.mlp_output_norm.weights) norm_rows(a, a.mlp_output_norm, a.left, nullptr, a.left);
  return -1;
}

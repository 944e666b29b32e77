// Paged attention of a packed step: cut into work items, done by all threads in one parallel region.

#include <algorithm>
#include <atomic>
#include <memory>
#include <vector>

#include "prefill.h"
#include "work.h"

namespace pagefleet {

constexpr int PREFILL_QUERIES = 192;  // of a work item
constexpr int64_t ONE_THREAD_BYTES = 200 << 10;  // less KV than this isn't worth waking a second thread

struct SplitRow {
  int32_t first_part, parts;
  std::atomic<int32_t> left;
};

// Memory that a thread keeps between calls: fresh memory for each layer would cost page faults.
struct Space {
  std::vector<float> floats;
  float* at_least(int64_t count) {
    if ((int64_t)floats.size() < count + 16) floats.resize(count + 16);
    return (float*)(((uintptr_t)floats.data() + 63) / 64 * 64);
  }
};
static thread_local Space thread_space;
static thread_local Space parts_space;

struct Work {
  std::vector<Item> items;
  std::unique_ptr<SplitRow[]> splits;  // [rows]
  int num_parts = 0;
  int64_t kv_bytes = 0;
};

static void add_prefill_items(const AttentionArguments& a, int row, Work& work) {
  const int group = a.query_heads / a.kv_heads, tokens = a.first_token[row + 1] - a.first_token[row];
  // Few queries still make enough items for every thread; a query's result doesn't depend on its item.
  int per_item = std::max(1, PREFILL_QUERIES / group);
  const int wanted = std::max(1, 4 * a.threads / a.kv_heads);
  per_item = std::min(per_item, std::max((tokens + wanted - 1) / wanted, (24 + group - 1) / group));
  for (int to = tokens; to > 0; to -= per_item)  // the longest first
    for (int h = 0; h < a.kv_heads; ++h) work.items.push_back({row, h, std::max(0, to - per_item), to, -1});
}

static void add_decode_items(const AttentionArguments& a, int row, Work& work) {
  const int end = a.context[row], begin = a.window ? std::max(0, end - a.window) : 0;
  const int first = begin / SPLIT, parts = (end - 1) / SPLIT - first + 1;
  SplitRow& split = work.splits[row];
  split.first_part = work.num_parts, split.parts = parts, split.left = parts;
  for (int i = 0; i < parts; ++i) {
    const int from = std::max(begin, (first + i) * SPLIT), to = std::min(end, (first + i + 1) * SPLIT);
    work.items.push_back({row, -1, from, to, parts == 1 ? -1 : work.num_parts + i});
  }
  if (parts > 1) work.num_parts += parts;
}

static Work cut(const AttentionArguments& a) {
  Work work;
  work.splits.reset(new SplitRow[a.rows]);
  const int64_t token_bytes = int64_t(a.kv_heads) * (a.key_size + a.value_size) * bytes_of(a.kv_type);
  for (int row = 0; row < a.rows; ++row)
    if (a.first_token[row + 1] - a.first_token[row] > 1) {
      add_prefill_items(a, row, work);
      work.kv_bytes += ONE_THREAD_BYTES;
    }
  for (int row = 0; row < a.rows; ++row)
    if (a.first_token[row + 1] - a.first_token[row] == 1) {
      add_decode_items(a, row, work);
      work.kv_bytes += token_bytes * std::min(a.context[row], a.window ? a.window : a.context[row]);
    }
  return work;
}

template <class Kv>
static void write_row(const AttentionArguments& a, int row, const float* sums, int stride, const RowState* states) {
  char* out = a.out + a.first_token[row] * a.out_token_stride;
  for (int h = 0; h < a.query_heads; ++h)
    write_output<Kv>(sums + h * stride, finish(states[h], a.sinks ? a.sinks + h : nullptr) * a.output_factor,
                     a.query_type, a.value_size, out + h * a.out_head_stride);
}

template <class Kv>
static void run_decode_item(const AttentionArguments& a, const Item& item, const Item* following, Work& work,
                            float* parts) {
  const int stride = sums_stride<Kv>(a), states_floats = sizeof(RowState) / sizeof(float);
  const int64_t row_floats = int64_t(a.query_heads) * stride;
  float* space = thread_space.at_least(decode_space<Kv>(a) + row_floats + a.query_heads * states_floats);
  float* own = space + decode_space<Kv>(a);
  RowState* own_states = (RowState*)(own + row_floats);
  if (item.part < 0) {
    decode_item<Kv>(a, item, following, space, own, stride, own_states);
    write_row<Kv>(a, item.row, own, stride, own_states);
    return;
  }
  RowState* all_states = (RowState*)(parts + work.num_parts * row_floats);
  decode_item<Kv>(a, item, following, space, parts + item.part * row_floats, stride,
                  all_states + int64_t(item.part) * a.query_heads);
  SplitRow& split = work.splits[item.row];
  if (split.left.fetch_sub(1, std::memory_order_acq_rel) > 1) return;
  merge_parts(split.parts, a.query_heads, parts + split.first_part * row_floats, stride,
              all_states + int64_t(split.first_part) * a.query_heads, own, own_states);
  write_row<Kv>(a, item.row, own, stride, own_states);
}

template <class Kv, class Prefill = Kv>
static void attend(const AttentionArguments& a) {
  Work work = cut(a);
  const int stride = sums_stride<Kv>(a);
  float* parts = parts_space.at_least(int64_t(work.num_parts) * a.query_heads * (stride + 2));
  std::atomic<int> taken{0};
  const auto run = [&] {
    const int count = (int)work.items.size(), group = a.query_heads / a.kv_heads;
    // The item after this one is taken early, so that the end of this one asks for the beginning of that one.
    int i = taken.fetch_add(1), next = taken.fetch_add(1);
    for (; i < count; i = next, next = taken.fetch_add(1)) {
      const Item& item = work.items[i];
      if (item.head < 0)
        run_decode_item<Kv>(a, item, next < count ? &work.items[next] : nullptr, work, parts);
      else
        prefill_item<Prefill>(a, item.row, item.head, item.begin, item.end,
                              thread_space.at_least(prefill_space<Prefill>(a, (item.end - item.begin) * group)));
    }
  };
  if (a.threads == 1 || work.items.size() == 1 || work.kv_bytes < ONE_THREAD_BYTES) return run();
#pragma omp parallel num_threads(a.threads)
  run();
}

}  // namespace pagefleet

PAGEFLEET_API void pagefleet_attention(const pagefleet::AttentionArguments* a) {
  using namespace pagefleet;
  if (a->kv_type == FLOAT32) return attend<Float32>(*a);
  if (a->kv_type == FLOAT16) return attend<Float16>(*a);
#ifdef PAGEFLEET_BF16_DOT
  if (a->query_type == BFLOAT16 && a->kv_type == BFLOAT16) return attend<BFloat16Pairs>(*a);
  if (a->query_type == BFLOAT16 && a->kv_type == FP8) return attend<Fp8Dots, CodesAsPairs<Fp8>>(*a);
#ifdef PAGEFLEET_BYTE_DOT
  if (a->query_type == BFLOAT16 && a->kv_type == INT8) return attend<Int8Dots, CodesAsPairs<Int8>>(*a);
#endif
#elif defined(PAGEFLEET_BYTE_DOT)
  if (a->query_type == BFLOAT16 && a->kv_type == INT8) return attend<Int8Dots, Int8>(*a);
#endif
  if (a->kv_type == INT8) return attend<Int8>(*a);
  if (a->kv_type == FP8) return attend<Fp8>(*a);
  attend<BFloat16>(*a);
}

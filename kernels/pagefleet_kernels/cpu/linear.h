// The arguments of a linear layer, whatever its weights are made of.
#pragma once

#include <cstdint>

namespace pagefleet {

// Mirrored in prepacked_linear/cpu.py.
struct LinearArguments {
  const char* x;
  const void* packed;
  const float* bias;  // [outputs] or null; of a gated layer the gate's, then the factor's
  char* out;
  int64_t x_stride, out_stride;  // bytes
  int64_t rows;
  int32_t inputs, outputs, type, threads;
  int32_t activation;  // of a gated layer, else -1
};

}  // namespace pagefleet

// The functions in the middle of a gated MLP.
#pragma once

#include "types.h"

namespace pagefleet {

// Mirrored in gated_activation/cpu.py.
enum Activation : int32_t { SILU = 0, GELU_TANH = 1 };

PAGEFLEET_INLINE vf activate(vf x, int activation) {
  if (activation == SILU) return x * sigmoid(x);
  // 0.5 x (1 + tanh(y)) = x sigmoid(2 y)
  return x * sigmoid(1.5957691216057308f * (x + 0.044715f * x * x * x));
}

}  // namespace pagefleet

"""Pure arithmetic of KV memory: a model's shape and a budget in; bytes, blocks, tokens and sequences out.

It counts what is stored, to the byte, so that a plan and a running server can be compared.
"""

from dataclasses import dataclass, replace

DTYPE_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}
QUANTISED_BYTES = {"int8": 1}
_KV_DTYPE_BYTES = DTYPE_BYTES | {"fp8": 1, "int8": 1}
# int8 comes with a float32 for each key and each value of a token; a layer's part of a block then ends at a multiple
# of this, so that scales lie where their type wants them.
SCALE_BYTES = 4
_ALIGNMENT_BYTES = 16
# What a process with torch holds with nothing to do and its end would free. Measured with a model of a few kilobytes on
# x86-64, torch 2.15: the server 400 MiB, the engine 433. Below both, as other builds hold somewhat less.
_IDLE_PROCESS_BYTES = 384 * 2**20
# Where no budget of tokens is fixed, the scheduler may find that this many fit into a step.
_STEP_TOKENS = 2048


@dataclass(frozen=True, slots=True)
class LayerShape:
    """What one attention layer stores for a token: `num_kv_heads` keys of `key_size` and values of `value_size`."""

    num_kv_heads: int
    key_size: int
    value_size: int

    @property
    def values_per_token(self) -> int:
        return self.num_kv_heads * (self.key_size + self.value_size)

    @property
    def scales_per_token(self) -> int:
        return 2 * self.num_kv_heads


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The layers of a model that store keys and values, in order."""

    layers: tuple[LayerShape, ...]

    @classmethod
    def uniform(cls, num_layers: int, num_kv_heads: int, head_size: int, value_size: int | None = None) -> "ModelShape":
        """Return the shape of a model whose layers are all alike."""
        layer = LayerShape(num_kv_heads, head_size, head_size if value_size is None else value_size)
        return cls((layer,) * num_layers)

    def can_be_shared_by(self, num_ranks: int) -> bool:
        """Whether each of several ranks can hold as many heads of every layer as the others."""
        return all(layer.num_kv_heads % num_ranks == 0 for layer in self.layers)

    def share(self, num_ranks: int) -> "ModelShape":
        """Return what one of them holds."""
        return ModelShape(tuple(replace(layer, num_kv_heads=layer.num_kv_heads // num_ranks) for layer in self.layers))


def dtype_bytes(dtype: str) -> int:
    """Return the bytes of one value. Raises ValueError for a dtype that no cache stores."""
    if dtype not in _KV_DTYPE_BYTES:
        raise ValueError(f"dtype is {dtype!r}; a KV cache stores {', '.join(_KV_DTYPE_BYTES)}")
    return _KV_DTYPE_BYTES[dtype]


def weight_bytes(dtype: str, quantization: str) -> int:
    """Return the bytes of one weight of a linear layer. Its scale, one for all of an output's, isn't counted."""
    return dtype_bytes(dtype) if quantization == "none" else QUANTISED_BYTES[quantization]


def bytes_per_token(shape: ModelShape, dtype: str) -> int:
    """Return what a token takes, its scales included."""
    return sum(_bytes_of_tokens(layer, dtype, 1) for layer in shape.layers)


def bytes_per_block(shape: ModelShape, dtype: str, block_size: int) -> int:
    return sum(layer_bytes(layer, dtype, block_size) for layer in shape.layers)


def layer_bytes(layer: LayerShape, dtype: str, block_size: int) -> int:
    """Return a layer's part of a block: its keys, its values, and where the dtype has scales these at the very end."""
    stored = _bytes_of_tokens(layer, dtype, block_size)
    return -(-stored // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES if dtype == "int8" else stored


def _bytes_of_tokens(layer: LayerShape, dtype: str, num_tokens: int) -> int:
    scales = SCALE_BYTES * layer.scales_per_token if dtype == "int8" else 0
    return num_tokens * (layer.values_per_token * dtype_bytes(dtype) + scales)


def blocks_in(budget_bytes: int, block_bytes: int) -> int:
    """Return how many whole blocks the budget holds; 0 where it holds none."""
    return max(0, budget_bytes) // block_bytes


def blocks_for(num_tokens: int, block_size: int) -> int:
    """Return the blocks that a sequence of `num_tokens` takes."""
    return -(-num_tokens // block_size)


def sequences_in(num_blocks: int, num_tokens: int, block_size: int) -> int:
    """Return how many sequences of `num_tokens` the blocks hold at the same time, none of them shared."""
    return num_blocks // blocks_for(num_tokens, block_size)


def expected_waste_fraction(mean_tokens: float, block_size: int) -> float:
    """Return the share of live slots that hold nothing, at the given mean live length.

    Only a sequence's last block has unused slots, (block_size - 1) / 2 of them on average.
    """
    unused = (block_size - 1) / 2
    return unused / (mean_tokens + unused)


def reserving_waste_fraction(mean_tokens: float, max_tokens: int) -> float:
    """Return the share of slots that hold nothing where each sequence reserves `max_tokens`."""
    return 1 - mean_tokens / max_tokens


@dataclass(frozen=True, slots=True)
class MemorySplit:
    """What a device's memory is divided into, in bytes."""

    limit_bytes: int
    percent: int
    weights_bytes: int
    workspace_bytes: int

    @property
    def kv_bytes(self) -> int:
        """What is left for blocks; negative where weights and workspace alone exceed the share."""
        return self.limit_bytes * self.percent // 100 - self.weights_bytes - self.workspace_bytes


@dataclass(frozen=True, slots=True)
class ModelWidths:
    """What a step's intermediate values are as wide as."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int


def workspace_bytes(widths: ModelWidths, *, batch_tokens: int | None, max_sequences: int, value_bytes: int) -> int:
    """Return an estimate of what a step needs beside weights and blocks. `batch_tokens` is None where none are fixed.

    Activations of a step's tokens (a few hidden states and two of the feed-forward's width live at a time), the
    logits of the sampled rows in the model's dtype and in float32 twice (processed and cumulative), and the
    64-row slices of prompt logprobs in float32 twice.
    """
    step_tokens = batch_tokens or _STEP_TOKENS
    activations = step_tokens * (8 * widths.hidden_size + 3 * widths.intermediate_size) * value_bytes
    sampled = min(max_sequences, step_tokens) * widths.vocab_size * (value_bytes + 8)
    slices = 64 * widths.vocab_size * 8
    return activations + sampled + slices


def idle_process_bytes(num_processes: int) -> int:
    """Return the least that processes with torch come to hold of a CPU's memory beside weights, blocks, workspace."""
    return num_processes * _IDLE_PROCESS_BYTES


def scratch_bytes(shape: ModelShape, block_bytes: int) -> int:
    """Return what attention copies per live block: the largest layer's share of a block, in every step."""
    values = [layer.values_per_token for layer in shape.layers]
    return block_bytes * max(values) // sum(values)


def block_cap(max_sequences: int, max_length_tokens: int, block_size: int) -> int:
    """Return the most blocks that live sequences can ever hold at once; more would serve cached prefixes only."""
    return max_sequences * blocks_for(max_length_tokens, block_size)


def describe_weights(num_bytes: int, quantization: str) -> str:
    return describe_bytes(num_bytes) + ("" if quantization == "none" else f", linear layers in {quantization}")


def describe_bytes(num_bytes: int) -> str:
    """Return bytes for people: `512 B`, `93.8 MiB`, `1.25 GiB`."""
    if num_bytes < 1024:
        return f"{num_bytes} B"
    value, units = float(num_bytes), ("KiB", "MiB", "GiB", "TiB")
    for unit in units:
        value /= 1024
        if value < 1024 or unit == units[-1]:
            return f"{value:.3g} {unit}" if value < 1000 else f"{value:.0f} {unit}"
    raise AssertionError("the last unit takes all")

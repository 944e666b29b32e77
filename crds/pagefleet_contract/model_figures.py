"""What is known of a model before it is downloaded: its sizes, from which memory and work follow."""

from dataclasses import dataclass

from pagefleet_contract.capacity import ModelShape, ModelWidths, dtype_bytes, weight_bytes


@dataclass(frozen=True, slots=True)
class Experts:
    """A mixture's feed-forward: `per_layer` of them, of which each token passes through `per_token`."""

    per_layer: int
    per_token: int


@dataclass(frozen=True, slots=True)
class Windows:
    """Attention over the last `tokens` only, in `num_layers` of the layers."""

    tokens: int
    num_layers: int


@dataclass(frozen=True, slots=True)
class KnownModel:
    """A decoder whose layers are alike. `hub_ids` are the repositories that hold this very shape."""

    name: str
    hub_ids: tuple[str, ...]
    model_type: str
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_size: int
    hidden_size: int
    intermediate_size: int  # of one expert, in a mixture
    vocab_size: int
    parameters: int
    max_length: int
    dtype: str = "bfloat16"
    quantization: str = "none"
    ties_embeddings: bool = False
    windows: Windows | None = None
    experts: Experts | None = None

    @property
    def shape(self) -> ModelShape:
        return ModelShape.uniform(self.num_layers, self.num_kv_heads, self.head_size)

    @property
    def widths(self) -> ModelWidths:
        return ModelWidths(self.vocab_size, self.hidden_size, self.intermediate_size)

    @property
    def weights_bytes(self) -> int:
        """The embedding's rows are looked up, not multiplied, and keep their type. Where they are the head's, too, a
        quantised head is a copy."""
        if self.quantization == "none":
            return self.parameters * dtype_bytes(self.dtype)
        embedding = self.vocab_size * self.hidden_size
        multiplied = self.parameters if self.ties_embeddings else self.parameters - embedding
        return embedding * dtype_bytes(self.dtype) + multiplied * weight_bytes(self.dtype, self.quantization)

    @property
    def active_parameters(self) -> int:
        """Those that one token passes through; all but the experts that it isn't sent to."""
        if self.experts is None:
            return self.parameters
        expert = 3 * self.hidden_size * self.intermediate_size
        return self.parameters - self.num_layers * (self.experts.per_layer - self.experts.per_token) * expert

"""One decoder layer of the llama-like families on a CPU: every operation of it in one call."""

from pagefleet_kernels.decoder_layer.cpu import DecoderLayer, LayerNorm, LayerStep, LayerWeights, can_attend
from pagefleet_kernels.decoder_layer.memory import LayerMemory

__all__ = ["DecoderLayer", "LayerMemory", "LayerNorm", "LayerStep", "LayerWeights", "can_attend"]

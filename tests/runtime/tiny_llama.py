"""A Llama of random weights, small enough for every test, with the tokenizer of `tiny_tokenizer`."""

from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from tests.runtime.tiny_tokenizer import BOS_ID, EOS_ID, PAD_ID, write_tiny_tokenizer


def write_tiny_llama(directory: Path, max_length: int = 512) -> None:
    """Write model and tokenizer as a Hugging Face directory."""
    vocab_size = write_tiny_tokenizer(directory)
    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=max_length,
        bos_token_id=BOS_ID,
        eos_token_id=EOS_ID,
        pad_token_id=PAD_ID,
        dtype="float32",
    )
    generator_state = torch.random.get_rng_state()
    torch.manual_seed(7)
    LlamaForCausalLM(config).save_pretrained(directory)
    torch.random.set_rng_state(generator_state)

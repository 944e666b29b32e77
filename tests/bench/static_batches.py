"""The baseline that everybody has: transformers' generate() in padded static batches, in a process of its own.

Run as a program it reads requests as JSON lines from standard input and prints one line of JSON with the seconds."""

import argparse
import json
import sys
import time
from collections.abc import Sequence

import torch
from transformers import AutoModelForCausalLM

from tests.bench.workloads import BenchRequest


def run_batches(model_directory: str, dtype: str, batch_size: int, requests: Sequence[BenchRequest]) -> float:
    """Return the seconds that the requests take in batches of `batch_size`, in order, each batch padded on the left and
    run until its longest answer is done (that is what a static batch costs)."""
    model = AutoModelForCausalLM.from_pretrained(model_directory, dtype=getattr(torch, dtype))
    model.train(False)
    model.generation_config.eos_token_id = None
    pad = model.generation_config.pad_token_id or 0
    with torch.inference_mode():
        model(torch.tensor([[pad] * 8]))  # the first call pays for the threads
        begin = time.perf_counter()
        for first in range(0, len(requests), batch_size):
            batch = requests[first : first + batch_size]
            longest = max(len(request.prompt_ids) for request in batch)
            rows = [[pad] * (longest - len(request.prompt_ids)) + list(request.prompt_ids) for request in batch]
            mask = [[0] * (longest - len(request.prompt_ids)) + [1] * len(request.prompt_ids) for request in batch]
            model.generate(
                torch.tensor(rows),
                attention_mask=torch.tensor(mask),
                max_new_tokens=max(request.num_output_tokens for request in batch),
                do_sample=False,
                pad_token_id=pad,
            )
        return time.perf_counter() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model_directory")
    parser.add_argument("--dtype", required=True)
    parser.add_argument("--batch-size", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    requests = [BenchRequest(tuple(row["prompt_ids"]), row["num_output_tokens"]) for row in map(json.loads, sys.stdin)]
    seconds = run_batches(options.model_directory, options.dtype, options.batch_size, requests)
    print(json.dumps({"seconds": seconds}))


if __name__ == "__main__":
    main()

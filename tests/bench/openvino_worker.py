"""OpenVINO GenAI's continuous batching, for a Python that has it: `PYTHON openvino_worker.py MODEL_DIRECTORY THREADS`.

It answers a line with a list of {"prompt_ids", "num_output_tokens"} with a list of {"sent", "tokens"}: when each
request was handed over, and when each of its tokens could be read. It knows nothing of this repository.
"""

import json
import sys
import time
from typing import Any

import numpy as np
import openvino  # type: ignore[import-not-found,unused-ignore]
import openvino_genai as genai  # type: ignore[import-not-found,unused-ignore]

KV_GIB = 1


def pipeline(directory: str, threads: int) -> Any:
    scheduling = genai.SchedulerConfig()
    scheduling.cache_size = KV_GIB
    properties = {"INFERENCE_PRECISION_HINT": "bf16", "INFERENCE_NUM_THREADS": threads}
    return genai.ContinuousBatchingPipeline(directory, scheduling, "CPU", properties)


def generate(pipe: Any, requests: list[dict[str, Any]]) -> list[dict[str, Any]]:
    traces: list[dict[str, Any]] = []
    handles = []
    for number, request in enumerate(requests):
        settings = genai.GenerationConfig()
        settings.max_new_tokens = request["num_output_tokens"]
        settings.ignore_eos = True
        settings.do_sample = False
        ids = openvino.Tensor(np.array([request["prompt_ids"]], dtype=np.int64))
        traces.append({"sent": time.perf_counter(), "tokens": []})
        handles.append(pipe.add_request(number, ids, settings))
    while pipe.has_non_finished_requests():
        pipe.step()
        now = time.perf_counter()
        for trace, handle in zip(traces, handles, strict=True):
            while handle.can_read():
                trace["tokens"] += [now] * sum(len(output.generated_ids) for output in handle.read().values())
    return traces


def main(directory: str, threads: str) -> None:
    pipe = pipeline(directory, int(threads))
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        print(json.dumps(generate(pipe, json.loads(line))), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])

"""What `helm test` runs: one completion from the service whose URL is given, by the model that the service names."""

import json
import os
import sys
import urllib.request


def answer(url: str, body: dict[str, object] | None = None) -> dict[str, object]:
    headers = {"content-type": "application/json"}
    if key := os.environ.get("PAGEFLEET_API_KEY"):
        headers["authorization"] = f"Bearer {key}"
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(urllib.request.Request(url, data, headers), timeout=60) as response:
        return json.load(response)


if len(sys.argv) < 2:
    print("nothing is tested: name an InferenceService with --set test.service=NAME at helm install or upgrade")
    sys.exit()
base = sys.argv[1]
model = answer(f"{base}/v1/models")["data"][0]["id"]
text = answer(f"{base}/v1/completions", {"model": model, "prompt": "Once upon a time", "max_tokens": 16})
print(f"{model} at {base} answers: {text['choices'][0]['text']!r}")

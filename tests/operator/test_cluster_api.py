"""What the operator sends to the API server, which reads a server-side apply as YAML."""

import json

import pytest
import yaml

from pagefleet_operator.cluster_api import yaml_text


@pytest.mark.parametrize(
    "text", ["llama 🦙", "für", "a\u0085b\u2028c\ufeff", 'a "b" \\u0041\\', "\x00\x1b\x7f\x9f\n\t"], ids=ascii
)
def test_a_body_means_the_same_as_json_and_as_yaml(text: str) -> None:
    body = {"status": {"message": text, text: [1, None]}}
    assert json.loads(yaml_text(body)) == yaml.safe_load(yaml_text(body)) == body

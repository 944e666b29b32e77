"""Messages survive the way between the processes."""

import pickle

from pagefleet_runtime.plan import TokenLogprob
from pagefleet_runtime.protocol import TokenOutput


def test_an_output_arrives_with_every_field() -> None:
    logprob = TokenLogprob(3, -0.5, ((3, -0.5),))
    output = TokenOutput("a", 1, 3, "stop", logprob, 4, "error", True, (logprob,), 0.25)
    assert pickle.loads(pickle.dumps(output)) == output

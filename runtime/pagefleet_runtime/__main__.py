"""`python -m pagefleet_runtime`: serve a model."""

import logging
import os
import sys

from pagefleet_runtime.main import main

if __name__ == "__main__":
    code = main()
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    # All is answered and said. Taking the interpreter apart, and waiting for its threads, would take seconds.
    os._exit(code)

"""`python -m pagefleet_router`: the front door of one InferenceService."""

import logging
import os
import sys

from pagefleet_router.main import main

if __name__ == "__main__":
    code = main()
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    # All is answered and said; taking the interpreter apart would only take time.
    os._exit(code)

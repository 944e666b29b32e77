"""`python -m pagefleet_router`: the front door of one InferenceService."""

import sys

from pagefleet_router.main import main

if __name__ == "__main__":
    sys.exit(main())

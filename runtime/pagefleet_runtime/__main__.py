"""`python -m pagefleet_runtime`: serve a model."""

from pagefleet_runtime.main import main

if __name__ == "__main__":
    raise SystemExit(main())

"""`python -m pagefleet_operator`."""

from pagefleet_operator.main import main

if __name__ == "__main__":
    main()

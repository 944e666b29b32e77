"""The front door of a fleet. Its first module comes with the issue Operate."""

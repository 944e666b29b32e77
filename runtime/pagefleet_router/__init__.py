"""The front door of a fleet. Not built yet."""

"""What two programs or two files must agree on, defined once: settings, names, metrics, arithmetic."""

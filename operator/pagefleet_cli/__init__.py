"""The `pagefleet` command. It never imports torch, so that help answers at once."""

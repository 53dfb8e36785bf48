"""One HTTP door to every sandbox."""

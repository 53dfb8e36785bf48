"""The real controllers and the real API in a world where everything that may happen does, by seed."""

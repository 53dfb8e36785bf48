"""The router: one HTTP address for every sandbox."""

"""Container logs: read from FIFOs, stored in files of bounded size, served to clients."""

"""Users of real sandboxes for any length of time, while processes are killed."""

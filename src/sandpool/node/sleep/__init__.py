"""Sleep of unused sandboxes: what counts as use, when a pod falls asleep, and the loop that sees to it."""

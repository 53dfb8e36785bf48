"""Objects that survive: revisions, history and watches in memory, every commit on disk before it is acknowledged."""

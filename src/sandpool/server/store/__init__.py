"""The object store: revisions, history and watches in memory, durable commits in a journal."""

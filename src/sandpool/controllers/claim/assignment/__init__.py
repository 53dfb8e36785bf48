"""Assignment of pooled sandboxes to claims: the assigner, its free lists, its wait queue, and node health."""

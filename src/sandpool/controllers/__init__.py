"""The controllers: what makes sandboxes, templates, pools and claims come true, a package each.

Every package has two halves. The first decides: pure functions from what was observed to what should be written. The
second acts: it looks into caches, performs what was decided and decides nothing.
"""

"""Explanations: timelines of claims from audit logs, and the cause that keeps a claim from being ready."""

"""Type graphs, the schemas of every kind, and admission by schema."""

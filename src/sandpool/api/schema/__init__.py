"""What objects look like: type graphs, the schemas of every kind, and what admission does with them."""

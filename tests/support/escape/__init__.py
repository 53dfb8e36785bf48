"""What a sandbox must not get hold of, and a program that tries to."""

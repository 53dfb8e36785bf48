"""What tests and benchmarks stand on: real control planes, object builders, ways to wait and to listen."""

"""What pods find where they mount something: scratch space, configuration, and data that outlives them."""

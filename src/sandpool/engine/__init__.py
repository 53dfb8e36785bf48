"""What makes a controller: clock, reflector, cache and indexes, work queue, expectations, lease, events."""

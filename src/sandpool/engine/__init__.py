"""Controller runtime: clock, informer cache, work queue, reconcile loop, expectations, leader election, events."""

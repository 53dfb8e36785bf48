"""What turns the API into a running server: the daemon, certificates, audit log and the in-process transport."""

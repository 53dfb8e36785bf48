"""Serving the API: the daemon, certificates, audit log and the in-process transport."""

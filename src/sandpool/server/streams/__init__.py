"""Requests that become something other than HTTP: commands, terminals and connections to ports of a pod."""

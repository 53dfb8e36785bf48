"""The cgroup is the identity of a container: what is in it, what it may use, whether it runs, and its end."""

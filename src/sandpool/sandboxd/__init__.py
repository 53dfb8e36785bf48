"""What runs inside a sandbox: commands and files, for whoever holds the sandbox.

A warm sandbox waits with this process in it, so it imports little and nothing of the rest of the package: most of its
memory is the interpreter. Threads and blocking calls, because nothing else is as small.
"""

"""What runs inside a sandbox: commands and files, for whoever holds the sandbox.

A warm sandbox waits with this process in it, and many are started at once, so it imports little and nothing of the rest
of the package: most of its memory is the interpreter, and so is most of the time it takes to start. Threads and
blocking calls, because nothing else is as small.

What the older dialect needs to run a command is imported at the start, and comes from the modules *beneath* the usual
ones (``_socket``, ``_thread``, ``_json``, ``_signal``). The usual ones make enums of hundreds of constants, compile
patterns and import each other, which takes three times as long as Python itself takes to start;
``tests/sandboxd/test_start.py`` holds what is imported.
"""

"""The server inside a sandbox: runs commands and transfers files for the client that holds the sandbox.

Every warm sandbox runs this process, and many start at once. It therefore imports little, and nothing of the rest of
the package: the interpreter accounts for most of its memory and start time. Threads and blocking calls keep it small.

The runtime API imports all it needs for a command at the start, from the C modules *beneath* the usual ones
(``_socket``, ``_thread``, ``_json``, ``_signal``). The usual ones create enums of hundreds of constants, compile
patterns and import each other, which takes three times as long as the start of Python itself.
``tests/sandboxd/test_start.py`` limits what is imported.
"""

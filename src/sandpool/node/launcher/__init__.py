"""A small process with root's privileges that starts everything which runs in a sandbox, and nothing else.

The agent has threads, an event loop and dozens of open files; none of that may be forked into a sandbox, and what has
to happen between fork and exec (enter cgroups, mount, drop privileges) is not safe in such a process. So the agent
starts this one early and asks it: ``client`` is the agent's side, ``serve`` the process, ``birth`` what a child does on
its way to become a container. For commands in a container that runs, a child goes in there (``entry``) and lets them in
one after the other (``porter``); ``porters`` is the agent's side of that. When the agent goes the launcher goes, and so
do porters; what they started stays.
"""

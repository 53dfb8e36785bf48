"""A small root process that starts everything that runs in a sandbox, and does nothing else.

The agent has threads, an event loop and dozens of open files. None of that may be forked into a sandbox, and the work
between fork and exec (join cgroups, mount, drop privileges) is unsafe in such a process. The agent therefore starts the
launcher early and sends it requests. ``client`` is the agent's side, ``server`` is the process, and
``spawn_container`` is the path of a forked child to a container.

For commands in a running container, a forked child enters the container (``enter``) and becomes an exec agent, which
starts the commands one after the other (``exec_agent``); ``exec_agent_pool`` is the agent's side. The launcher and the
exec agents exit when the agent exits. The processes they started keep running.
"""

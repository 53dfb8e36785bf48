"""Child processes of a command that are supervised, and confined to descriptors that they are given.

``supervisor`` is the parent's side: it starts a child, restarts it with back-off, and forwards its log. ``confinement``
and ``control`` are the child's side: it gives up every privilege, and receives messages with descriptors.
"""

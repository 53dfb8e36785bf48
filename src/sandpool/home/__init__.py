"""The local home: the ``sandpool up`` process of this machine, how programs find it, reach it and start it."""

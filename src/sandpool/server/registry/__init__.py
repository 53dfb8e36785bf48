"""The verbs: what create, get, list, watch, update, patch and delete mean for any kind of object."""

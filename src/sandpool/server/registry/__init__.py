"""The verbs of the API, for any kind: create, get, list, watch, update, patch, delete and scale."""

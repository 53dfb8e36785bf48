"""The dashboard: pools, claims, sandboxes and nodes in a browser, live.

``board`` keeps small rows of all objects by watching the API, ``stream`` sends what changes to browsers, ``actions``
and ``inspection`` do what a person asks for, through ``service`` and ``explain`` like every other surface. ``guard``
stands before all of them. The pages are static files without third-party code (decision 15 in docs/adr).
"""

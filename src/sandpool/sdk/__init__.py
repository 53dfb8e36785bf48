"""The Python client: claim a sandbox, run commands and code in it, give it back.

``sandpool.Client`` blocks, ``sandpool.AsyncClient`` is for asyncio. Both find the API as the command line does: a
kubeconfig, the local home, or the service account of a pod. A sandbox of a program that ends, in whatever way, is
released: its claim carries a lease that only a living program renews.
"""

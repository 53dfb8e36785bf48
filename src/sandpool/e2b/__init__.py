"""An endpoint that speaks the protocol of E2B, so that its published Python packages work with our sandboxes.

The control plane maps to claims (``control_plane``), the daemon that E2B has in every sandbox is played by the
endpoint (``processes``, ``filesystem_api``, ``files_api``), and so is its code interpreter (``interpreter``): they run
commands through ``service``, so any image works and nothing has to be installed in it. API keys map to namespaces and
quotas (``keys``). The endpoint needs nothing but a kubeconfig.
"""

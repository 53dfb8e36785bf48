"""Every pod its own network: a namespace, an address, a firewall and names."""

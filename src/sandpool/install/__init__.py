"""Installing into a cluster and uninstalling: the objects, the generated manifests, the installer and the remover."""

"""Getting into a cluster and out of it again: what is installed, the files that say so, and who applies them."""

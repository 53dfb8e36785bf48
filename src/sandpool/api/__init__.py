"""The objects: kinds, typed views, conditions, labels, names and hashes, schemas and the CRDs made from them."""

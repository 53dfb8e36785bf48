"""The API of our kinds behind a kube-apiserver, as an aggregated API server: who asks, and what they may do."""

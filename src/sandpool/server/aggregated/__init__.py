"""The API of our kinds behind a kube-apiserver, as an aggregated API server: authentication and authorization."""

# Every target sets itself up: a virtual environment in .venv and, where root allows, Debian packages.
.PHONY: demo test lint crds
PYTHON ?= python3

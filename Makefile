# The two commands to know are `make demo` and `make test`. Every target prepares what it needs (see dev/setup).
# Tabs and .PHONY aside, each recipe is a line you can run yourself.

BIN := .venv/bin
JOBS ?= 2

.PHONY: help setup demo test fuzz test-long test-kubernetes test-vm runtimes lint format docs lock audit crds deploy bench-api bench-calls bench-claims bench-data bench-sandboxes bench-node bench-profiles bench-kubernetes clean

help:            ## show this list
	@sed -n 's/^\([a-z-]*\): .*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 20

setup:           ## create .venv and install what the other targets need
	@dev/setup

demo: setup      ## start everything, fill a warm pool, claim 50 sandboxes at once, show how long that took
	@$(BIN)/sandpool demo

test: setup      ## the fast tests, in parallel
	@$(BIN)/pytest -q -n $(JOBS) --dist worksteal --timeout 300 -m "not long and not kubernetes"

fuzz: setup      ## mutate inputs of all decoders for SANDPOOL_FUZZ_SECONDS (60), with a new seed
	@SANDPOOL_FUZZ_SECONDS=$${SANDPOOL_FUZZ_SECONDS:-60} SANDPOOL_SEED=$${SANDPOOL_SEED:-$$(date +%s)} \
	$(BIN)/pytest -q -s tests/fuzz

test-long: setup runtimes ## the tests that take minutes, and those of all runtimes
	@$(BIN)/pytest -q -n $(JOBS) --dist worksteal -m "(long or built) and not kubernetes"

runtimes:        ## build runc and gVisor's runsc with Go, if they are not; without them their tests are skipped
	@dev/runc >/dev/null || true
	@dev/runsc >/dev/null || true

test-kubernetes: setup ## the tests that compare with a real kube-apiserver; builds one with Go if needed
	@assets=$${KUBEBUILDER_ASSETS:-$$(dev/kube-assets)} && { dev/helm-assets >/dev/null || true; } && \
	KUBEBUILDER_ASSETS=$$assets SANDPOOL_REQUIRE_KUBERNETES=1 \
	$(BIN)/pytest -q -n $(JOBS) --dist worksteal --timeout 300 -m "kubernetes"

test-vm: setup   ## the tests that depend on cgroups, on a virtual machine with cgroup v2 alone (emulated, so slow)
	@dev/vm $(BIN)/pytest -v -p no:cacheprovider --timeout 300 -m "not long" -k "not gvisor" tests/node/cgroups \
	tests/node/runtimes/test_adoption.py tests/node/pods/test_inside.py tests/security/test_survival.py tests/security/test_bombs.py

lint: setup      ## formatting, style and types
	@$(BIN)/ruff format --check -q . && $(BIN)/ruff check -q . && $(BIN)/mypy && dev/typescript/check

format: setup    ## rewrite the code in the project's format
	@$(BIN)/ruff format -q . && $(BIN)/ruff check -q --fix .

docs: setup      ## build the documentation site in build/site; a warning or a broken link fails
	@env NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet --site-dir build/site

lock: setup      ## pin everything that development needs, with hashes, in dev/requirements.lock
	@dev/lock

audit:           ## check pinned packages against advisories and write a bill of materials, build/sbom.json
	@dev/audit

crds: setup      ## write deploy/crds/ and deploy/lean/ from the schema definitions
	@$(BIN)/python -m sandpool.api.schema.crds deploy/crds
	@$(BIN)/python -m sandpool.api.schema.crds deploy/lean lean

deploy: crds     ## write the other manifests, the Helm chart and the dashboard in deploy/
	@$(BIN)/python -m dev.deploy.files deploy

bench-api: setup ## measure the embedded API; compares with kube-apiserver + etcd where their binaries are built
	@$(BIN)/python -m benchmarks.api

bench-data: setup ## measure how quickly sandboxes answer, through the SDK and the router; as root
	@$(BIN)/python -m benchmarks.data

bench-sandboxes: setup ## measure what a sandbox of each runtime costs, without API and network; as root
	@$(BIN)/python -m benchmarks.sandboxes

bench-node: setup ## measure pods of this machine with a network, cold and warm; as root
	@$(BIN)/python -m benchmarks.node

bench-calls: setup ## count the Python function calls of a warm claim, by layer and by kind of request
	@$(BIN)/python -m benchmarks.calls

bench-claims: setup ## measure how long claims take and what they cost, in this process and over HTTPS
	@$(BIN)/sandpool bench claims --json build/bench-claims.json

bench-profiles: setup ## measure what a write costs a real kube-apiserver with either profile of the definitions
	@assets=$${KUBEBUILDER_ASSETS:-$$(dev/kube-assets)} && KUBEBUILDER_ASSETS=$$assets \
	$(BIN)/python -m benchmarks.profiles --json build/bench-profiles.json

bench-kubernetes: setup ## measure claims behind a real kube-apiserver, as installed; builds one with Go if needed
	@assets=$${KUBEBUILDER_ASSETS:-$$(dev/kube-assets)} && KUBEBUILDER_ASSETS=$$assets \
	$(BIN)/python -m benchmarks.kubernetes --json build/bench-kubernetes.json --html build/bench-kubernetes.html $(BENCH_FLAGS)

clean:           ## remove what the other targets made in this directory
	@rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis

# Every target sets up what it needs. The first run fetches vLLM, PyTorch and a small model; later ones start at once.
.DEFAULT_GOAL := help
.PHONY: help setup demo serve test test-exact test-faults test-cluster test-cluster-long test-e2e test-kubernetes kubernetes image sim-quick results results-headline docs lint format lock check-lock chart crd clean

BIN := .venv/bin

# What needs an API server at most runs beside what needs a whole cluster: both mostly wait. Each remembers what failed.
WITHOUT_NODES := $(BIN)/pytest -o cache_dir=.pytest_cache/without-nodes -m "not long and not nodes" tests/chart tests/cluster
WITH_NODES := $(BIN)/pytest -o cache_dir=.pytest_cache/with-nodes -m "not long and nodes"

help: ## this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-17s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## the project's own environment in .venv, through uv
	@.ci/environment

demo: setup ## a real small model, stock order against PRISM, about four minutes (ARGS="--serve" keeps it up)
	@$(BIN)/prism demo $(ARGS)

test: setup ## the quick tests (ARGS="-k tree" for some of them)
	@$(BIN)/pytest $(ARGS)

test-exact: setup ## 200 real requests, PRISM against stock vLLM, token for token (about half an hour)
	@$(BIN)/pytest -m exact --timeout=7200 -s $(ARGS)

test-faults: setup ## a real server killed, stopped, drained, overloaded and hung up on (about six minutes)
	@$(BIN)/pytest -m faults --timeout=700 tests/faults $(ARGS)

lint: setup ## ruff, mypy (strict) and the import contracts
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo

format: setup ## let ruff put the sources in order
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

lock: setup ## write requirements/*.txt from pyproject.toml (ARGS=--upgrade for newer versions)
	@UV=$${UV:-$(CURDIR)/.cache/uv/bin/uv} $(BIN)/python .ci/lock write $(ARGS)

check-lock: setup ## fail if requirements/*.txt are not what pyproject.toml asks for
	@UV=$${UV:-$(CURDIR)/.cache/uv/bin/uv} $(BIN)/python .ci/lock check

chart: setup ## write the chart's README, values schema and dashboard, and lint it with helm where there is one
	@PYTHONPATH=charts $(BIN)/python -m prism_chart
	@helm=$${HELM:-$$(command -v helm)}; if [ -n "$$helm" ]; then "$$helm" lint --strict charts/prism; \
		else echo "helm is not installed here: the chart was not linted"; fi

crd: setup ## write the CRD of PrismConfig into the chart, from the schema
	@$(BIN)/python -m prism.config.crd charts/prism/templates/crd-prismconfigs.yaml

sim-quick: setup ## the promises in the simulator, in small: fails when one is broken (about three minutes)
	@$(BIN)/python -m prism.bench.sim_quick

results: setup ## all cells that are missing, then docs/results (hours; goes on where it was left; ARGS="load --seeds 2")
	@$(BIN)/python -m prism.bench.results run $(ARGS)

results-headline: setup ## the main figures made anew, and compared with those in docs/results (about half an hour)
	@$(BIN)/python -m prism.bench.results headline
	@$(BIN)/python -m prism.bench.results check

docs: setup ## the documentation site, strictly, into .cache/site (open .cache/site/index.html)
	@$(BIN)/python -m prism.config.reference docs/configuration.md
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

kubernetes: setup ## Kubernetes, Helm, Jaeger and images for the tests below, kept in ~/.cache/prism/cluster (25 minutes once)
	@PYTHONPATH=tests/cluster $(BIN)/python -m realcluster.prepare

test-cluster: kubernetes ## chart and operator on a real cluster that the tests bring up; needs root and Go
	@.ci/beside '$(WITHOUT_NODES) $(ARGS)' '$(WITH_NODES) tests/cluster $(ARGS)'

test-cluster-long: kubernetes ## the same, with what waits for minutes
	@$(BIN)/pytest -m cluster --timeout=1800 tests/cluster $(ARGS)

test-e2e: kubernetes ## from `kubectl apply` of an InferenceService to its trace in Jaeger, on a real cluster
	@$(BIN)/pytest -m e2e tests/e2e $(ARGS)

test-kubernetes: kubernetes ## test-cluster and test-e2e on one cluster
	@.ci/beside '$(WITHOUT_NODES) $(ARGS)' '$(WITH_NODES) tests/cluster tests/e2e $(ARGS)'

image: setup ## the operator's image and the whole CPU predictor's (6 GB), by buildah, without a registry
	@PYTHONPATH=tests/cluster $(BIN)/python -m realcluster.images

clean: ## remove the environment, caches of tools and the demo's output
	@rm -rf .venv .cache .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis .coverage htmlcov demo-out

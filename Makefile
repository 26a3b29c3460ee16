# Every target sets up what it needs. The first run fetches vLLM, PyTorch and a small model; later ones start at once.
.DEFAULT_GOAL := help
.PHONY: help setup demo serve test test-exact lint format lock check-lock chart clean

BIN := .venv/bin

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## the project's own environment in .venv, through uv
	@.ci/environment

demo: setup ## a real small model, stock order against PRISM, about four minutes (ARGS="--serve" keeps it up)
	@$(BIN)/prism demo $(ARGS)

test: setup ## the quick tests (ARGS="-k tree" for some of them)
	@$(BIN)/pytest $(ARGS)

test-exact: setup ## 200 real requests, PRISM against stock vLLM, token for token (about half an hour)
	@$(BIN)/pytest -m exact --timeout=7200 -s $(ARGS)

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

clean: ## remove the environment, caches of tools and the demo's output
	@rm -rf .venv .cache .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis .coverage htmlcov demo-out

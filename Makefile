# rlpad: `make demo` and `make test` set everything up themselves.
PYTHON ?=
VENV := .venv
MODERN := .venv-modern
EXTRAS := atari,box2d,tensorboard,video,wandb,tls,dev
# The newest JAX differs between Pythons, so each has a constraint file of its own.
PIP_FLAGS := --disable-pip-version-check --quiet

.PHONY: help install install-modern demo test test-modern learning chaos bench lint format clean

help: ## Show this list.
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 18

install: $(VENV)/.installed ## Find Python 3.11, make .venv with the reverb stack and all test extras.

$(VENV)/.installed: pyproject.toml constraints/reverb-py311.txt
	@python="$$(tools/find_python.sh $(or $(PYTHON),3.11))" && \
	echo "installing the reverb stack into $(VENV) (two to four minutes)" && \
	"$$python" -m venv --clear $(VENV) && \
	$(VENV)/bin/python -m pip install $(PIP_FLAGS) --upgrade 'pip>=24' 'setuptools>=68' wheel -c constraints/reverb-py311.txt && \
	$(VENV)/bin/python -m pip install $(PIP_FLAGS) -c constraints/reverb-py311.txt -e '.[reverb,$(EXTRAS)]' && \
	$(VENV)/bin/python -m pip check && \
	touch $@

install-modern: $(MODERN)/.installed ## Make .venv-modern with the newest JAX: make install-modern PYTHON=python3.12

$(MODERN)/.installed: pyproject.toml $(wildcard constraints/modern-*.txt)
	@python="$$(tools/find_python.sh $(or $(PYTHON),3.12))" && \
	version="$$("$$python" -c 'import sys; print("py%d%d" % sys.version_info[:2])')" && \
	constraints="constraints/modern-$$version.txt" && \
	{ [ -f "$$constraints" ] || { echo "no $$constraints: rlpad is tested on Python 3.11 to 3.13" >&2; exit 1; }; } && \
	echo "installing the newest JAX into $(MODERN) ($$version)" && \
	"$$python" -m venv --clear $(MODERN) && \
	$(MODERN)/bin/python -m pip install $(PIP_FLAGS) --upgrade 'pip>=24' 'setuptools>=68' wheel -c "$$constraints" && \
	$(MODERN)/bin/python -m pip install $(PIP_FLAGS) -c "$$constraints" -e '.[$(EXTRAS)]' && \
	$(MODERN)/bin/python -m pip check && \
	touch $@

demo: install ## Train DQN on CartPole and watch it learn.
	$(VENV)/bin/python -m experiments.cartpole_dqn $(ARGS)

test: install ## The quick tier of tests, one seed; CI runs it.
	$(VENV)/bin/python -m pytest -m 'not learning and not chaos' $(ARGS)

test-modern: install-modern ## The quick tier on the newest JAX, without reverb.
	$(MODERN)/bin/python -m pytest -m 'not learning and not chaos' $(ARGS)

learning: install ## Learns to levels over several seeds (an hour or more).
	$(VENV)/bin/python -m pytest -m learning --timeout=3600 $(ARGS)

chaos: install ## Faults and soak.
	$(VENV)/bin/python -m pytest -m chaos --timeout=1800 $(ARGS)

bench: install ## Speed against simple baselines and peers that are installed.
	$(VENV)/bin/python -m benchmarks.rpc
	$(VENV)/bin/python -m benchmarks.launch
	$(VENV)/bin/python -m benchmarks.single_process

lint: install ## Ruff, mypy and the layer rules.
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports

format: install ## Format the code.
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

clean: ## Remove what make install made.
	rm -rf $(VENV) $(MODERN) build *.egg-info

# Entry points. What each does stands in tools/ and examples/, readable on its own.
.DEFAULT_GOAL := help
.PHONY: help demo test world drill planted strangers examples frameworks adoption pages slurm upgrade lanes e2e bench build release dist release-check lint env completions clean-env

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: ## set up, build, and run the whole story on this machine: train, break things, recover, explain
	@python="$$(tools/python-env)" && tools/build && exec "$$python" examples/demo.py

test: ## set up, build, lint, and run all tests
	@exec tools/test

world: ## simulated histories: SEEDS=100000 of them, SIZE=small, mixed or large; prints, shrinks and logs what breaks a rule
	@cargo run --locked --quiet --profile world -p muster-world -- --seeds 0..$(or $(SEEDS),100000) --size $(or $(SIZE),small) \
		--threads $$(nproc) --log-file target/world.jsonl $(WORLD)

drill: ## the long drills: 100,000 damages, a minute of fuzzing per decoder, 1,000 kills of the coordinator, 50 partitions, 2,000 kills and stops (about an hour)
	@exec tools/drill

planted: ## put mistakes into the rules, one by one, see the world find each, and write tests/world/REPORT.md
	@cargo run --locked --quiet --profile world -p muster-world --features planted -- --hunt --threads $$(nproc)
	@cargo run --locked --quiet --profile world -p muster-world --features planted -- --report

slurm: ## clusters inside allocations of Slurm itself: munged, slurmctld and three slurmd on this machine (Debian: slurm-wlm; as root)
	@exec tools/slurm

upgrade: ## build an earlier commit (FROM=COMMIT), and replace each of its daemons by this build under a job that trains
	@exec tools/upgrade "$(FROM)"

strangers: ## public packages in every lane beside plain torchrun: losses, modules, environment, logs (about an hour; packages from the index, 1 GB). STRANGERS="--measure --write": seconds after a kill instead
	@exec tools/strangers $(STRANGERS)

examples: ## kill a rank of each example, under plain torchrun and under Muster; with transformers and Lightning (packages from the index, 1 GB)
	@exec tools/examples

frameworks: ## accelerate, DeepSpeed, TensorFlow, JAX, XGBoost, LightGBM, MPI and Horovod through killed members, cut nodes and scaling: what it cost, and whether they end as if nothing had happened (FRAMEWORKS="--cases jax"; packages from the index, 5.1 GB)
	@exec tools/frameworks $(FRAMEWORKS)

adoption: ## Kubeflow's own SDK against the coordinator and a real API server (kube-apiserver and etcd; packages from the index, 150 MB)
	@exec tools/adoption

lanes: ## the compatibility suite with each python3.10 to 3.14 on PATH, or MUSTER_TEST_PYTHONS=A:B, or LANES="--torch 2.8,2.9 --python 3.12" (three minutes each; PyTorch for each from the index)
	@exec tools/lanes $(LANES)

e2e: ## the whole life in the Kubernetes cluster of KUBECONFIG: install, train, break things, upgrade, uninstall (E2E="--overlay DIR ..."; E2E=--help)
	@exec tools/e2e $(E2E)

bench: ## the race beside stock torchrun, goodput, scale, the senses, the search for steps; more than two hours; writes bench/results/README.md (BENCH=--quick: a quarter of it, writes nothing)
	@python="$$(tools/python-env)" && tools/build --release && "$$python" bench/race.py $(or $(BENCH),--write) \
		&& "$$python" bench/goodput.py $(or $(BENCH),--write) && "$$python" bench/sizing.py $(if $(BENCH),,--write) \
		&& "$$python" bench/scale.py $(or $(BENCH),--write) \
		&& "$$python" bench/scale.py --only tls $(or $(BENCH),--write) \
		&& "$$python" bench/scale.py --only flood $(or $(BENCH),--write) \
		&& "$$python" bench/senses.py $(or $(BENCH),--write) \
		&& "$$python" bench/steps.py $(or $(BENCH),--write) \
		&& cargo run --release --locked --quiet -p muster-decidebench \
		&& exec cargo run --release --locked --quiet -p muster-decidebench -- traces --nodes 250 --hours 3 --warm-up 1 --load 95

build: ## all programs, side by side in target/muster/bin
	@exec tools/build

release: ## what is shipped, and nothing else, in target/muster/release; TARGET=aarch64-unknown-linux-gnu for arm64
	@exec tools/release target/muster/release $(if $(TARGET),--target $(TARGET))

dist: ## what users install, in target/muster/dist: a wheel (pip install), a tarball, a .deb, an .rpm, checksums; linked with an old glibc by zig (from the index, 400 MB)
	@exec tools/dist target/muster/dist $(if $(TARGET),--target $(TARGET))

release-check: ## what a release must pass, in one command (CHECK="--without slurm,cluster"; about three hours)
	@exec tools/release-check $(CHECK)

lint: ## formatting, clippy, licences and sources of the dependencies
	@exec tools/lint

pages: ## the pages of `muster web` in Chromium: pictures, keyboard, axe-core, without JavaScript (Debian: chromium, chromium-driver); PAGES=--write puts a picture into docs
	@exec tools/pages $(PAGES)

env: ## make (or find) the Python environment of the demo and the tests; prints its interpreter
	@exec tools/python-env

completions: build ## shell completions for bash, zsh and fish, in target/muster/completions
	@mkdir -p target/muster/completions
	@target/muster/bin/muster completion bash > target/muster/completions/muster.bash
	@target/muster/bin/muster completion zsh > target/muster/completions/_muster
	@target/muster/bin/muster completion fish > target/muster/completions/muster.fish
	@echo "written: target/muster/completions/muster.bash, _muster and muster.fish"

clean-env: ## remove the Python environments made by this repository
	@exec tools/python-env --clean

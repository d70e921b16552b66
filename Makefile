# make demo: install, train on handwritten digits, score and sample.  make test: install and test.
PYTHON ?= python3
# index of PyTorch's wheels for CPUs, which are 6 GB smaller; empty: the default index, with CUDA
TORCH_INDEX ?=
BIN := .venv/bin
RUN := runs/digits
MINUTES ?= 2
SETUP := .venv/.installed

.PHONY: demo test test-all test-browser lint docs ui screenshots pretrained mnist mnist-latent fashion cifar10 detectors card paper lock clean

$(SETUP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "ebm_app needs Python 3.11 or newer: make PYTHON=python3.x")'
	@echo "Installing ebm_app and its packages in .venv, which takes minutes:"
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --upgrade pip
	$(if $(TORCH_INDEX),$(BIN)/python -m pip install --index-url $(TORCH_INDEX) torch torchvision)
	$(BIN)/python -m pip install --editable '.[test]'
	@touch $@

# constraints.txt: the installed versions of what the web app needs, for the Dockerfile
lock: $(SETUP)
	$(BIN)/python -m pip install --quiet pip-tools
	mkdir -p build
	$(BIN)/python -m pip freeze --exclude-editable | sed 's/+cpu//; /@/d' > build/installed.txt
	$(BIN)/pip-compile --quiet --extra ui --strip-extras --no-annotate --no-header --no-emit-index-url \
	  --no-emit-find-links --constraint build/installed.txt --output-file build/constraints.txt pyproject.toml
	sed '/^ebm/d; /^#/d; /^$$/d' build/constraints.txt > constraints.txt

.venv/.docs: $(SETUP)
	$(BIN)/python -m pip install --quiet --editable '.[docs]'
	touch $@

demo: $(SETUP)
	@echo "Training on handwritten digits for $(MINUTES) minutes, then bits per dim of 100 test images and 100 samples:"
	$(BIN)/python train/ebm.py --dataset digits --classes all --max_train_minutes $(MINUTES) --output_dir $(RUN) --overwrite_output_dir
	$(BIN)/python evaluate/bpd.py $(RUN) --limit 100 --repeats 1 --output_dir $(RUN)
	$(BIN)/python sample/ebm.py $(RUN) --num_images 100 --labels 0 1 2 3 4 5 6 7 8 9 --guidance_scale 1.5 --output_dir $(RUN)/samples
	@echo "Sheet of samples: $(RUN)/samples/grid.png"

# one thread per process: two test processes on two cores are slower with more
test test-all: export OMP_NUM_THREADS = 1

test: $(SETUP)
	$(BIN)/python -m pytest -q -n 2

# all tests except those in a browser; includes kills, full disks and minutes of training
test-all: $(SETUP)
	$(BIN)/python -m pytest -q -n 2 -m 'not browser'

# tests of the web app in a headless Chromium
test-browser: $(SETUP)
	$(BIN)/python -m pytest -q -m browser

lint: $(SETUP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

# README, docs/ and the API reference as a site in site/; a warning is an error
docs: .venv/.docs
	$(BIN)/python -m mkdocs build --strict --config-file tools/mkdocs.yml

ui: $(SETUP)
	$(BIN)/python ui/app.py

# screenshots of the web app in docs/
screenshots: $(SETUP)
	$(BIN)/python tools/screenshots.py --data_root $(DATA) --output_dir docs

# Train the bundled models. The weights of mnist-latent and fashion come from longer chains of runs; their recipes
# give models of the same kind.
BUNDLED := ebm_app/pretrained
DATA ?= data

# 18 minutes on one core with AVX-512-BF16 or AMX
pretrained: $(SETUP)
	$(BIN)/python train/ebm.py --dataset digits --classes all --output_dir runs/digits-model

# four hours on one core, with MNIST in DATA in torchvision's layout. The second run drops most labels, which
# improves the bits of images without a class
MNIST := --dataset mnist --data_root $(DATA)
mnist: $(SETUP)
	$(BIN)/python train/ebm.py $(MNIST) --size small --prediction moments --classes all --label_dropout 0.2 --train_batch_size 64 --learning_rate 2e-3 --ema_decay 0.9995 --max_train_steps 40000 --output_dir runs/mnist-first
	$(BIN)/python train/ebm.py $(MNIST) --config $(BUNDLED)/mnist/run.json --init_from runs/mnist-first --output_dir runs/mnist

# an hour on one core
mnist-latent: $(SETUP)
	$(BIN)/python train/flow.py --flow copula $(MNIST) --output_dir runs/mnist-latent-flow
	$(BIN)/python train/ebm.py $(MNIST) --flow runs/mnist-latent-flow --config $(BUNDLED)/mnist-latent/run.json --divergence poisson --max_train_steps 12000 --output_dir runs/mnist-latent

# minutes on a GPU, and fashion 80 more on a core of a CPU; Fashion-MNIST in torchvision's layout and CIFAR-10 in
# either layout in DATA
FASHION := --dataset fashion_mnist --data_root $(DATA) --config $(BUNDLED)/fashion/run.json
fashion: $(SETUP)
	$(BIN)/python train/ebm.py $(FASHION) --max_train_minutes 3 --train_batch_size 128 --learning_rate 2e-3 --ema_decay 0.999 --output_dir runs/fashion-gpu
	$(BIN)/python train/ebm.py $(FASHION) --init_from runs/fashion-gpu --device cpu --output_dir runs/fashion
cifar10: $(SETUP)
	$(BIN)/python train/ebm.py --dataset cifar10 --data_root $(DATA) --config $(BUNDLED)/cifar10/run.json --output_dir runs/cifar10

# fit the anomaly detectors of the bundled models to validation images, 20 minutes on one core
detectors: $(SETUP)
	for model in digits mnist mnist-latent fashion cifar10; do \
	  $(BIN)/python evaluate/anomaly.py $$model --data_root $(DATA) --fit 500 --limit 4 --num_unusual 2 || exit 1; done

# figures and images for the card of a model in runs/, an hour
MODEL ?= mnist
CARD := runs/$(MODEL)
card: $(SETUP)
	$(BIN)/python evaluate/bpd.py $(CARD) --data_root $(DATA) --estimator elbo --estimator_args num_draws=1 --repeats 1 --output_dir $(CARD)
	$(BIN)/python evaluate/bpd.py $(CARD) --data_root $(DATA) --estimator elbo path_integral probability_flow time_integral --limit 100 --repeats 1 --output_dir $(CARD)/hundred
	$(BIN)/python evaluate/samplers.py $(CARD) --data_root $(DATA) --run "dpm num_steps=12" --run probability_flow --output_dir $(CARD)
	$(BIN)/python sample/ebm.py $(CARD) --num_images 100 --output_dir $(CARD)/samples

# tables and figures of docs/paper.md, by the commands recorded in docs/results/paper.json: hours. Finished runs
# are kept in runs/ and docs/results/*.jsonl, and an interrupted command resumes
RESUME = $(if $(wildcard $(@D)/checkpoint-*),--resume_from_checkpoint latest)
PAPER := ambient-ctsm_v ambient-tsm latent-ctsm_v latent-tsm
paper: $(SETUP) $(PAPER:%=runs/paper-%/loss.png)
	$(BIN)/python tools/results.py run paper
	$(BIN)/python tools/results.py write
	$(BIN)/python tools/figures.py

runs/paper-ambient-%/loss.png: | $(SETUP)
	$(BIN)/python train/ebm.py --config docs/recipes/paper-ambient-cpu.json --objective $* --data_root $(DATA) --output_dir $(@D) $(RESUME)
runs/paper-latent-%/loss.png: runs/mnist-gaussian-flow/model.safetensors
	$(BIN)/python train/ebm.py --config docs/recipes/paper-latent-cpu.json --flow $(<D) --objective $* --data_root $(DATA) --output_dir $(@D) $(RESUME)
runs/mnist-gaussian-flow/model.safetensors: | $(SETUP)
	$(BIN)/python train/flow.py --flow gaussian $(MNIST) --output_dir $(@D)

clean:
	rm -rf .venv build site ebm_app.egg-info .pytest_cache .ruff_cache

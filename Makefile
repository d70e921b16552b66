# make demo: set up, train on handwritten digits, score and sample.  make test: set up and test.
PYTHON ?= python3
BIN := .venv/bin
RUN := runs/digits
STEPS ?= 2000
SETUP := .venv/.installed

.PHONY: demo test test-all test-browser lint docs ui screenshots pretrained mnist mnist-card mnist-latent figures studies clean

$(SETUP): pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "ebm_app needs Python 3.11 or newer: make PYTHON=python3.x")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[test]'
	touch $@

.venv/.docs: $(SETUP)
	$(BIN)/python -m pip install --quiet --editable '.[docs]'
	touch $@

demo: $(SETUP)
	$(BIN)/python train/ebm.py --dataset digits --max_train_steps $(STEPS) --validation_steps 500 --output_dir $(RUN) --overwrite_output_dir
	$(BIN)/python evaluate/bpd.py $(RUN) --output_dir $(RUN)
	$(BIN)/python sample/ebm.py $(RUN) --num_images 100 --output_dir $(RUN)/samples
	$(BIN)/python evaluate/report.py $(RUN)

test: $(SETUP)
	$(BIN)/python -m pytest -q -n 2

test-all: $(SETUP)
	$(BIN)/python -m pytest -q -n 2 -m 'not browser'

# the page in a headless Chromium
test-browser: $(SETUP)
	$(BIN)/python -m pytest -q -m browser

lint: $(SETUP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

# README and docs/ as a site with the reference of the API, in site; a warning is an error
docs: .venv/.docs
	$(BIN)/python -m mkdocs build --strict --config-file tools/mkdocs.yml

ui: $(SETUP)
	$(BIN)/python ui/app.py

# the pictures of the page in docs
screenshots: $(SETUP)
	$(BIN)/python ui/screenshots.py --output_dir docs

# the bundled digits model: the whole budget of the preset, about half an hour on one core, then the
# variance alone
DIGITS := ebm_app/pretrained/digits
WHOLE := runs/pretrained-first
pretrained: $(SETUP)
	$(BIN)/python train/ebm.py --dataset digits --output_dir $(WHOLE)
	$(BIN)/python train/ebm.py --dataset digits --config $(DIGITS)/run.json --init_from $(WHOLE) --output_dir runs/pretrained
	cp $(WHOLE)/run.json $(DIGITS)/first_run.json
	cp $(WHOLE)/metrics.jsonl $(DIGITS)/first_metrics.jsonl
	cd runs/pretrained && cp config.json model.safetensors metrics.jsonl run.json loss.png ../../$(DIGITS)/
	$(BIN)/python evaluate/held_out.py $(DIGITS) --output_dir $(DIGITS)

# the bundled MNIST model: runs that go on from each other's weights, eleven core hours; its files
# lie in DATA, in torchvision's layout
DATA ?= data
MNIST := runs/mnist
BUNDLE := ebm_app/pretrained/mnist
MNIST_RUN := train/ebm.py --dataset mnist --data_root $(DATA)
MNIST_LATER := third fourth fifth sixth seventh eighth ninth tenth eleventh
MNIST_TWO := $(BIN)/torchrun --standalone --nproc_per_node 2 $(MNIST_RUN) --expect_processes 2
mnist: $(SETUP)
	$(MNIST_TWO) --config $(BUNDLE)/first_run.json --output_dir $(MNIST)-first
	$(MNIST_TWO) --config $(BUNDLE)/second_run.json --init_from $(MNIST)-first --output_dir $(MNIST)-second
	last=second; for run in $(MNIST_LATER); do \
		$(BIN)/python $(MNIST_RUN) --config $(BUNDLE)/$${run}_run.json --init_from $(MNIST)-$$last --output_dir $(MNIST)-$$run || exit 1; \
		last=$$run; \
	done
	$(BIN)/python $(MNIST_RUN) --config $(BUNDLE)/run.json --init_from $(MNIST)-eleventh --output_dir $(MNIST)
	for run in first second $(MNIST_LATER); do \
		cp $(MNIST)-$$run/run.json $(BUNDLE)/$${run}_run.json && \
		cp $(MNIST)-$$run/metrics.jsonl $(BUNDLE)/$${run}_metrics.jsonl || exit 1; \
	done
	cd $(MNIST) && cp config.json model.safetensors metrics.jsonl run.json ../../$(BUNDLE)/
	$(BIN)/python evaluate/held_out.py $(BUNDLE) --data_root $(DATA) --output_dir $(BUNDLE)

# its card: every figure of what `make mnist` left, an hour on one core
mnist-card: $(SETUP)
	$(BIN)/python evaluate/bpd.py $(MNIST) --data_root $(DATA) --estimator elbo --estimator_args num_draws=1 --repeats 1 --output_dir $(MNIST)
	$(BIN)/python evaluate/bpd.py $(MNIST) --data_root $(DATA) --estimator elbo noised along_pf_ode ratio --limit 100 --repeats 1 --output_dir $(MNIST)/hundred
	$(BIN)/python evaluate/bpd.py $(MNIST) --data_root $(DATA) --estimator pf_ode --limit 100 --repeats 1 --output_dir $(MNIST)/pf_ode
	$(BIN)/python evaluate/samplers.py $(MNIST) --data_root $(DATA) --run "pf_ode num_steps=6" --run "pf_ode num_steps=12" --run "pf_ode num_steps=25" --run "pf_ode num_steps=50" --output_dir $(MNIST)
	$(BIN)/python evaluate/memorisation.py $(MNIST) --data_root $(DATA) --output_dir $(MNIST)
	$(BIN)/python sample/ebm.py $(MNIST) --num_images 100 --output_dir $(MNIST)/samples
	$(BIN)/python sample/ebm.py $(MNIST) --num_images 16 --sampler annealed_hmc --output_dir $(MNIST)/samples_hmc
	$(BIN)/python evaluate/report.py $(MNIST) --output $(BUNDLE)/README.md
	cp $(MNIST)-eleventh/loss.png $(BUNDLE)/
	cp $(BUNDLE)/samples_grid.png docs/mnist.png

# the bundled MNIST model in the latent space of a flow, with its card: an hour and a half on one core
LATENT := runs/mnist-latent
LATENT_BUNDLE := ebm_app/pretrained/mnist-latent
mnist-latent: $(SETUP)
	$(BIN)/python train/flow.py --flow copula --dataset mnist --data_root $(DATA) --output_dir $(LATENT)-flow
	$(BIN)/python $(MNIST_RUN) --space copula --flow $(LATENT)-flow --config $(LATENT_BUNDLE)/first_run.json --output_dir $(LATENT)-first
	$(BIN)/python $(MNIST_RUN) --config $(LATENT_BUNDLE)/second_run.json --init_from $(LATENT)-first --output_dir $(LATENT)-second
	$(BIN)/python $(MNIST_RUN) --config $(LATENT_BUNDLE)/run.json --init_from $(LATENT)-second --output_dir $(LATENT)
	$(BIN)/python evaluate/bpd.py $(LATENT) --data_root $(DATA) --estimator elbo --estimator_args num_draws=1 --limit 1000 --repeats 1 --output_dir $(LATENT)
	$(BIN)/python evaluate/bpd.py $(LATENT) --data_root $(DATA) --estimator elbo noised ratio --limit 100 --repeats 1 --output_dir $(LATENT)/hundred
	$(BIN)/python evaluate/samplers.py $(LATENT) --data_root $(DATA) --num_images 200 --run "pf_ode num_steps=12" --run "pf_ode num_steps=50" --output_dir $(LATENT)
	$(BIN)/python sample/ebm.py $(LATENT) --num_images 100 --output_dir $(LATENT)/samples
	for run in first second; do \
		cp $(LATENT)-$$run/run.json $(LATENT_BUNDLE)/$${run}_run.json && \
		cp $(LATENT)-$$run/metrics.jsonl $(LATENT_BUNDLE)/$${run}_metrics.jsonl || exit 1; \
	done
	cd $(LATENT) && cp config.json model.safetensors metrics.jsonl run.json ../../$(LATENT_BUNDLE)/
	$(BIN)/python evaluate/held_out.py $(LATENT_BUNDLE) --data_root $(DATA) --output_dir $(LATENT_BUNDLE)
	$(BIN)/python evaluate/report.py $(LATENT) --output $(LATENT_BUNDLE)/README.md
	cp $(LATENT)-second/loss.png $(LATENT_BUNDLE)/
	cp $(LATENT_BUNDLE)/samples_grid.png docs/mnist-latent.png

# the tables and pictures in docs of the bundled digits model, and its card
FIGURES := runs/figures/digits
figures: $(SETUP)
	$(BIN)/python evaluate/bpd.py digits --estimator all --repeats 1 --output_dir $(FIGURES)
	$(BIN)/python evaluate/bpd.py digits --output_dir $(FIGURES)/elbo
	$(BIN)/python evaluate/bpd.py digits --estimator ratio pf_ode --dequantisation truncated_normal --repeats 1 --output_dir $(FIGURES)/truncated_normal
	$(BIN)/python evaluate/selftest.py digits --output_dir $(FIGURES)
	$(BIN)/python evaluate/ais.py digits --method all --num_chains 96 --output_dir $(FIGURES)
	$(BIN)/python evaluate/samplers.py digits --output_dir $(FIGURES)
	$(BIN)/python evaluate/memorisation.py digits --output_dir $(FIGURES)
	$(BIN)/python evaluate/speed.py digits --output_dir $(FIGURES)
	$(BIN)/python sample/ebm.py digits --num_images 100 --output_dir $(FIGURES)/samples
	cp $(DIGITS)/run.json $(DIGITS)/metrics.jsonl $(DIGITS)/loss.png $(FIGURES)/
	$(BIN)/python evaluate/report.py $(FIGURES) --output $(DIGITS)/README.md
	cd $(FIGURES) && cp ais.png samplers.png selftest.png speed.png ../../../docs/
	cp $(FIGURES)/samples/grid.png docs/digits.png
	$(BIN)/python evaluate/path_drawing.py --output docs/path.png

# the tables and figures in docs about latent spaces and density ratios: hours; what is there
# is not run again
studies: $(SETUP)
	$(BIN)/torchrun --standalone --nproc_per_node 2 evaluate/toy.py --output_dir runs/toy
	$(BIN)/torchrun --standalone --nproc_per_node 2 evaluate/mi.py --output_dir runs/mi
	$(BIN)/python evaluate/bounds.py --output_dir runs/bounds
	$(BIN)/python train/flow.py --flow copula --output_dir runs/copula
	$(BIN)/python evaluate/ablations.py --study latent --training_args space=copula flow=runs/copula train_batch_size=64 --output_dir runs/latent
	cp runs/toy/toy.png docs/
	cp runs/mi/mi_curves.png docs/mutual_information.png
	cp runs/bounds/theorem4.png runs/bounds/proposition5.png docs/

clean:
	rm -rf .venv build site ebm_app.egg-info .pytest_cache .ruff_cache

"""Images of known probability, 3 x 3 Markov chains over four of the 256 grey values: a run on
their folder learns most of what a pixel tells of the next."""

import numpy as np
import pytest
import torch
from PIL import Image

from ebm_app.data import load_images
from ebm_app.image_models.ebm import EBM
from ebm_app.io.start import run_script

VALUES = (5, 90, 100, 250)
#: P(next | now): the first pixel is uniform, the others follow in the order of reading
TRANSITIONS = 0.1 ** np.abs(np.subtract.outer(np.arange(4), np.arange(4)))
TRANSITIONS /= TRANSITIONS.sum(1, keepdims=True)
SIZES = {"train": 1500, "validation": 50, "test": 300}
FLAGS = (
    "--max_train_steps 400 --train_batch_size 128 --block_out_channels 32 --layers_per_block 1 "
    "--lr_warmup_steps 50 --learning_rate 3e-3 --ema_decay 0.98 --dropout 0 "
    "--num_preview_images 0 --device cpu"
).split()


def draw(num, numbers):
    """Chains (num, 9) of levels."""
    chains = numbers.randint(4, size=(num, 9))
    for i in range(1, 9):
        edges = TRANSITIONS[chains[:, i - 1]].cumsum(1)[:, :3]
        chains[:, i] = (numbers.rand(num, 1) > edges).sum(1)
    return chains


@pytest.mark.slow
def test_a_short_run_comes_near_the_entropy_of_a_folder_of_few_values(tmp_path, script):
    numbers = np.random.RandomState(0)
    for split, num in SIZES.items():
        (tmp_path / "images" / split).mkdir(parents=True)
        for i, chain in enumerate(draw(num, numbers)):
            pixels = np.array(VALUES, dtype=np.uint8)[chain].reshape(3, 3)
            Image.fromarray(pixels).save(tmp_path / "images" / split / f"{i:04d}.png")
    run = str(tmp_path / "run")
    flags = [*FLAGS, "--dataset", f"folder:{tmp_path}/images", "--output_dir", run]
    assert run_script(script("train/ebm.py").main, flags) == 0
    chains = load_images(f"folder:{tmp_path}/images").test.flatten(1).long()
    log_prob = torch.tensor(TRANSITIONS).log2()[chains[:, :-1], chains[:, 1:]].sum(1) - 2
    known = -log_prob / 9
    found = EBM.from_pretrained(run).log_prob(chains.reshape(-1, 1, 3, 3).byte(), repeats=4)
    gap = (found.bits_per_dim - known).mean().item()
    # measured 0.31; independent pixels of the right frequencies are 1.15 above, 256 levels 7.15
    assert -0.02 < gap < 0.4

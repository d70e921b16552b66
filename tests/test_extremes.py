"""Every number that a script takes, at the ends of its range: the script ends well, or in one
sentence."""

import math
import shlex
from pathlib import Path

import numpy as np
import pytest
from annotated_types import Ge, Gt, Le, Lt
from conftest import ROOT, TINY
from flags import SCRIPTS, bounds, flags_of, hint_of, is_numeric, parser_of

from ebm_app.io.cli import plain
from ebm_app.io.start import run_script

#: what makes a run of a script short; the page and what calls it are tried in tests of their own
SHORT = {
    "train/ebm.py": f"--max_train_steps 1 --checkpointing_steps 1 {' '.join(TINY)}",
    "train/flow.py": "--flow spline --max_train_steps 1 --layers 1 --hidden 2 --bins 2 "
    "--train_batch_size 4 --validation_images 4 --validation_repeats 1 --num_preview_images 0",
    "sample/ebm.py": "{grey} --num_images 2 --num_steps 2",
    "evaluate/bpd.py": "{grey} --limit 3 --repeats 1",
    "evaluate/ais.py": "{grey} --limit 3 --repeats 1 --num_chains 2 --num_temperatures 2 "
    "--transported_temperatures 2 --pf_ode_steps 2 --diffusion_steps 8 --num_leapfrog_steps 1 "
    "--num_nodes 4 --method all",
    "evaluate/selftest.py": "{grey} --limit 3 --num_times 2 --num_reference 4 --pf_ode_steps 2",
    "evaluate/samplers.py": "{grey} --num_images 4 --classifier_steps 2 --run "
    "'pf_ode num_steps=1'",
    "evaluate/memorisation.py": "{grey} --num_images 4 --num_shown 2",
    "evaluate/speed.py": "{grey} --batch_size 4 --limit 2 --parts likelihood",
    "evaluate/toy.py": "--iterations 2 --learning_rates 1e-3 --num_seeds 1 "
    "--problems gaussians_d2 --methods nce",
    "evaluate/mi.py": "--iterations 2 --num_seeds 1 --benchmark normal_1x1 --num_rows 100",
    "evaluate/ratio.py": "--x0 {rows} --x1 {rows} --iterations 2",
    "evaluate/bounds.py": "--quick",
    "evaluate/ablations.py": "--max_train_steps 1 --limit 2 --variant ema_decay=0 --training_args "
    "block_out_channels=8 norm_num_groups=4 train_batch_size=4 validation_images=4",
}
#: whole numbers whose largest value asks for no more work than a small one
FREE = (
    "seed batch_size block_size checkpointing_steps checkpoints_total_limit validation_steps "
    "validation_images logging_steps lr_warmup_steps lr_decay_steps num_folds num_shown "
    "num_nearest num_heads norm_num_groups expect_processes"
).split()
#: flags that are of no use at the ends of a range without others
WITH = {
    "lr_decay_steps": "--lr_scheduler constant_with_warmup",
    "num_heads": "--attention_levels 0",
    "resolution": "--dataset folder:{images}",
}


def ends(name: str, hint: object) -> list[str]:
    """The smallest and the largest value of a type that are worth a run."""
    found = []
    for bound in bounds(hint):
        match bound:
            case Ge():
                found.append(bound.ge)
            case Gt():
                found.append(bound.gt + 1e-300)
            case Le() if plain(hint) is float or name in FREE:
                found.append(bound.le)
            case Lt() if plain(hint) is float:
                found.append(math.nextafter(bound.lt, -math.inf))
            case Lt() if name in FREE:
                found.append(bound.lt - 1)
    return [str(value) for value in found]


@pytest.mark.slow
@pytest.mark.parametrize("path", SHORT)
def test_a_number_at_the_end_of_its_range_ends_well(
    path, here, folder, image_folder, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    parser, failures, num = parser_of(path), [], 0
    places = {"grey": folder / "grey", "images": image_folder, "rows": tmp_path / "rows.npy"}
    np.save(places["rows"], np.random.default_rng(0).normal(size=(1000, 2)))
    on = ["--device", "cpu"] if any(a.dest == "device" for a in flags_of(parser)) else []
    main = here(path).main
    for action in flags_of(parser):
        if not is_numeric(hint_of(action)):
            continue
        for value in ends(action.dest, hint_of(action)):
            num += 1
            words = f"{SHORT[path]} {WITH.get(action.dest, '')}".format(**places)
            flags = [*shlex.split(words), "--output_dir", str(tmp_path / str(num))]
            flags += [*on, f"--{action.dest}={value}"]
            try:
                code = run_script(main, flags)
            except BaseException as error:  # whatever it is, it is none that a user should see
                failures.append(f"{action.dest}={value}: {type(error).__name__}: {error}")
                continue
            *_, last = capsys.readouterr().err.splitlines() or [""]
            if code not in (0, 2) or (code == 2 and not last.startswith("error: ")):
                failures.append(f"{action.dest}={value}: {code} {last}")
    assert not failures, f"{len(failures)} of {num} runs: " + "\n".join(failures)
    assert num > 3 or path == "evaluate/toy.py"


def test_every_script_with_numbers_is_tried():
    without = {"evaluate/report.py", "evaluate/path_drawing.py", "evaluate/held_out.py"}
    pages = {"ui/app.py", "tools/load.py", "tools/screenshots.py"}
    assert set(SHORT) == set(SCRIPTS) - without - pages
    assert all((Path(ROOT) / path).is_file() for path in SHORT)

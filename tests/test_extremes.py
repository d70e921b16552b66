"""Every number that a script takes, at the ends of its range: the script ends well, or in one
sentence."""

import math

import pytest
from annotated_types import Ge, Gt, Le, Lt
from conftest import TINY
from flags import arguments_of, numbers_of

from ebm_app.io.start import run_script

#: what makes a run of a script short
SHORT = {
    "train/ebm.py": f"--max_train_steps 1 --checkpointing_steps 1 {' '.join(TINY)}",
    "train/flow.py": "--flow spline --max_train_steps 1 --layers 1 --hidden 2 --bins 2 "
    "--train_batch_size 4 --validation_images 4 --validation_repeats 1 --num_preview_images 0",
    "sample/ebm.py": "{grey} --num_images 2 --num_steps 2",
    "evaluate/bpd.py": "{grey} --limit 3 --repeats 1",
    "evaluate/selftest.py": "{grey} --limit 3 --num_times 2 --num_reference 4 --pf_ode_steps 2",
}
#: whole numbers whose largest value asks for no more work than a small one
FREE = (
    "seed batch_size checkpointing_steps checkpoints_total_limit validation_steps "
    "validation_images logging_steps lr_warmup_steps lr_decay_steps num_heads norm_num_groups "
    "expect_processes"
).split()
#: flags that are of no use at the ends of a range without others
WITH = {
    "lr_decay_steps": ["--lr_scheduler", "constant_with_warmup"],
    "num_heads": ["--attention_levels", "0"],
    "resolution": ["--dataset", "folder:{images}"],
}


def ends(name: str, plain: type, bounds: list[object]) -> list[str]:
    """The smallest and the largest value of a type that are worth a run."""
    found = []
    for bound in bounds:
        match bound:
            case Ge():
                found.append(bound.ge)
            case Gt():
                found.append(bound.gt + 1e-300)
            case Le() if plain is float or name in FREE:
                found.append(bound.le)
            case Lt() if plain is float:
                found.append(math.nextafter(bound.lt, -math.inf))
            case Lt() if name in FREE:
                found.append(bound.lt - 1)
    return [str(value) for value in found]


@pytest.mark.slow
@pytest.mark.parametrize("path", SHORT)
def test_a_number_at_the_end_of_its_range_ends_well(
    path, script, folder, image_folder, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    places, failures = {"grey": folder / "grey", "images": image_folder}, []
    cases = [
        (name, value)
        for name, plain, bounds, _ in numbers_of(arguments_of(path))
        for value in ends(name, plain, bounds)
    ]
    for num, (name, value) in enumerate(cases):
        flags = [*SHORT[path].split(), *WITH.get(name, []), "--output_dir", f"run{num}"]
        flags = [flag.format(**places) for flag in flags]
        try:
            code = run_script(script(path).main, [*flags, "--device", "cpu", f"--{name}", value])
        except BaseException as error:  # whatever it is, it is none that a user should see
            failures.append(f"{name}={value}: {type(error).__name__}: {error}")
            continue
        *_, last = capsys.readouterr().err.splitlines() or [""]
        if code not in (0, 2) or (code == 2 and not last.startswith("error: ")):
            failures.append(f"{name}={value}: {code} {last}")
    assert not failures, f"{len(failures)} of {len(cases)} runs: " + "\n".join(failures)
    assert len(cases) > 3

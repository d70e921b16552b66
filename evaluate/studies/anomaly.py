"""How well a model tells odd images from its own held-out ones, beside other detectors.

python evaluate/anomaly.py mnist --limit 300
python evaluate/anomaly.py mnist --fit 2000 --output_dir ebm_app/pretrained/mnist

The second command fits the detector to validation images and writes it into a model's folder. The
table has the area under the ROC curve (AUROC) by kind of odd image: made of ordinary ones, letters
in the fonts of this machine, and other data sets whose files are in --data_root. The other
detectors see pixels of validation images: those of scikit-learn, and ECOD where pyod is installed.
A second table tells how well maps find what was planted in an image: the area under the curve of
precision and recall of its pixels (AUPR), the share of them among as many that look oddest, and
the share by chance. anomaly.png has an image of each kind with its map.
"""

import time
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from ebm_app.anomaly import AnomalyDetector
from ebm_app.cli.command_line import CommonFlags, ModelFlag, parse
from ebm_app.evaluation.held_out import images_for
from ebm_app.utils.fields import AtLeastTwo, Count, configuration, setting
from ebm_app.utils.files import save_figure
from ebm_app.utils.output import Output, to_markdown
from ebm_app.utils.processes import resolve_device
from studies.unusual_images import ODD, PLANTED, fonts, odd_images, of_other_data

RATES = (0.01, 0.05, 0.1)
#: validation images that the other detectors are fitted to, and ours if it is not yet
NUM_FITTED = 2000


@configuration(kw_only=True)
class Arguments(CommonFlags, ModelFlag):
    """The command line."""

    data_root: str = setting("folder of the data sets in torchvision's layout", "data")
    limit: AtLeastTwo = setting("ordinary test images", 1000)
    odd: AtLeastTwo = setting("odd images of a kind, made of the first of these", 250)
    fit: Count = setting("fit to so many validation images and write the detector", 0)
    output_dir: Path = setting("where the record or the detector goes", Path("runs/anomaly"))


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Fit a detector, or try it on every kind of odd image."""
    args = parse(Arguments, __doc__, argv)
    detector = AnomalyDetector(args.model, device=resolve_device(args.device))
    config = detector.model.config
    data = images_for(detector.model, config.dataset, args.data_root)
    if args.fit:
        args.output_dir.mkdir(parents=True, exist_ok=True)  # before minutes of work
        levels = data.validation[: args.fit]
        about = {"dataset": data.name, "split": "validation", "num_images": len(levels)}
        detector.fit(levels).save(args.output_dir, **about)
        return about
    output = Output(args.output_dir / "anomaly.json", args)
    fitted = data.validation[:NUM_FITTED]
    if not detector.is_fitted:
        detector.fit(fitted)
    ordinary = data.display(data.test[: args.limit])
    source = ordinary[: args.odd]
    labels = None if data.labels is None else data.split_labels("test")[: len(source)]
    others = other_detectors(data.display(fitted).flatten(1).numpy(), args.seed)
    begin, usual = time.perf_counter(), detector.examine(ordinary)
    metrics = {
        "num_images": len(ordinary),
        "seconds_per_image": (time.perf_counter() - begin) / len(ordinary),
        "false_alarms": {str(rate): float((usual.p_value <= rate).mean()) for rate in RATES},
        "fonts": [Path(file).stem for file in fonts()],
        "rows": {},
    }
    pixels = ordinary.flatten(1).numpy()
    usual_of_others = {name: score(pixels) for name, score in others.items()}
    shown: dict[str, tuple[Tensor, np.ndarray]] = {}
    made = ((kind, odd_images(kind, source, labels, config.num_levels, args.seed)) for kind in ODD)
    for kind, odd in (*made, *of_other_data(config, args.data_root, args.odd)):
        findings, pixels = detector.examine(odd), odd.flatten(1).numpy()
        found, shown[kind] = findings.score, (odd[0], findings.maps[0])
        row = {"num_images": len(odd), "auroc": auroc(usual.score, found)}
        for name, score in others.items():
            row[name] = auroc(usual_of_others[name], score(pixels))
        metrics["rows"][kind] = row
    print(to_markdown([{"odd images": kind, **row} for kind, row in metrics["rows"].items()]))
    metrics["planted"] = {kind: found_parts(detector, source, kind, args.seed) for kind in PLANTED}
    print(to_markdown([{"planted": kind, **row} for kind, row in metrics["planted"].items()]))
    output.save(metrics)
    from ebm_app.evaluation.plots import plot_maps  # matplotlib, a second to import

    save_figure(plot_maps(shown), output.folder / "anomaly.png")
    return metrics


def other_detectors(pixels: np.ndarray, seed: int) -> dict[str, Callable]:
    """Detectors fitted to pixels (N, D) in [0, 1], which give scores, higher for more ordinary."""
    # a second to import
    from sklearn.decomposition import PCA
    from sklearn.ensemble import IsolationForest
    from sklearn.neighbors import LocalOutlierFactor
    from sklearn.svm import OneClassSVM

    seed %= 2**32
    models = {
        "isolation forest": IsolationForest(random_state=seed),
        "one-class SVM": OneClassSVM(nu=0.1),
        "local outlier factor": LocalOutlierFactor(novelty=True),
    }
    scores = {name: model.fit(pixels).score_samples for name, model in models.items()}
    if find_spec("pyod"):
        from pyod.models.ecod import ECOD

        ecod = ECOD()
        ecod.fit(pixels)
        scores["ECOD"] = lambda x: -ecod.decision_function(x)
    components = PCA(0.9, random_state=seed).fit(pixels)

    def unlike(x: np.ndarray) -> np.ndarray:
        return -np.square(x - components.inverse_transform(components.transform(x))).sum(1)

    return {**scores, "PCA": unlike}


def auroc(ordinary: np.ndarray, odd: np.ndarray) -> float:
    """The probability that an odd image scores below an ordinary one, ties by half."""
    from sklearn.metrics import roc_auc_score

    is_odd = np.repeat([0, 1], [len(ordinary), len(odd)])
    return float(roc_auc_score(is_odd, -np.concatenate([ordinary, odd])))


def found_parts(detector: AnomalyDetector, images: Tensor, kind: str, seed: int) -> dict[str, Any]:
    """How well the maps of images find a part that is planted in them; means over images."""
    from sklearn.metrics import average_precision_score

    odd = PLANTED[kind](images, np.random.default_rng(seed))
    planted = (odd != images).any(1)
    is_changed = planted.any((1, 2))
    masks = planted[is_changed].flatten(1).numpy()
    maps = detector.explain(odd[is_changed]).reshape(masks.shape)
    pairs = list(zip(masks, maps, strict=True))
    oddest = [mask[np.argsort(-values)[: mask.sum()]].mean() for mask, values in pairs]
    return {
        "num_images": len(masks),
        "aupr": float(np.mean([average_precision_score(*pair) for pair in pairs])),
        "share": float(np.mean(oddest)),
        "by chance": float(masks.mean()),
    }

"""How well a model tells odd images from its own held-out ones, beside other detectors.

python evaluate/anomaly.py mnist --limit 300
python evaluate/anomaly.py mnist --fit 2000 --output_dir ebm_app/pretrained/mnist

The second command fits the detector to validation images and writes it into a model's folder. The
table has the area under the ROC curve (AUROC) and the share of ordinary images called odd where 95
percent of the odd ones are (FPR), by kind of odd image; that of maps has the mean average
precision of the pixels of something planted. The other detectors see pixels of validation images.
"""

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from annotated_types import Ge
from torch import Tensor

from ebm_app.anomaly import AnomalyDetector
from ebm_app.anomaly.detector import MIN_IMAGES
from ebm_app.data.images import ImageData
from ebm_app.evaluation.held_out import images_for
from ebm_app.io.command_line import CommonFlags, ModelFlag, parse
from ebm_app.io.errors import UserError
from ebm_app.io.fields import Count, Several, configuration, setting
from ebm_app.io.output import Output
from ebm_app.io.processes import resolve_device
from ebm_app.io.records import to_dict
from ebm_app.io.registry import choose
from ebm_app.io.start import run_script
from studies.odd import ODD, odd_images, planted

RATES = (0.01, 0.05, 0.1)
PLANTED = ("square", "scratch")
SPLITS = ("validation", "test")


@configuration(kw_only=True)
class Arguments(CommonFlags, ModelFlag):
    """The command line."""

    data_root: str = setting("folder of the data sets in torchvision's layout", "data")
    download: bool = setting("fetch a missing data set", False)
    split: str = setting("validation or test, for ordinary images and those made odd", "test")
    limit: Several = setting("ordinary images", 1000)
    odd: Several = setting("odd images of a kind, made of the first of these", 250)
    fit: Count = setting("fit to so many validation images and write the detector", 0)
    fit_images: Annotated[int, Ge(MIN_IMAGES)] = setting(
        "validation images that the other detectors are fitted to, and ours if it is not yet", 2000
    )
    output_dir: Path = setting("where the record or the detector goes", Path("runs/anomaly"))


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Fit a detector, or try it on every kind of odd image."""
    args = parse(Arguments, __doc__, argv)
    split = choose("split", args.split, SPLITS)
    detector = AnomalyDetector(args.model, device=resolve_device(args.device))
    config = detector.model.config
    data = images_for(detector.model, config.dataset, args.data_root, args.download)
    if args.fit:
        return fit(detector, data, args.fit, args.output_dir)
    output = Output(args.output_dir / "anomaly.json", to_dict(args))
    fitted = data.validation[: args.fit_images]
    if not detector.is_fitted:
        detector.fit(fitted)
    # a detector is fitted to the first validation images
    part = slice(-args.limit, None) if split == "validation" else slice(args.limit)
    ordinary = data.display(data.split(split)[part])
    source = ordinary[: args.odd]
    labels = None if data.labels is None else data.split_labels(split)[part][: args.odd]
    others = other_detectors(data.display(fitted).flatten(1).numpy(), args.seed)
    begin, usual = time.perf_counter(), detector.examine(ordinary)
    metrics = {
        "split": split,
        "num_images": len(ordinary),
        "seconds_per_image": (time.perf_counter() - begin) / len(ordinary),
        "false_alarms": {str(rate): float((usual.p_value <= rate).mean()) for rate in RATES},
        "rows": {},
        "maps": {what: precision_of_maps(detector, source, what) for what in PLANTED},
    }
    print(f"false alarms {metrics['false_alarms']}, precision of maps {metrics['maps']}")
    pixels = ordinary.flatten(1).numpy()
    usual_of_others = {name: score(pixels) for name, score in others.items()}
    for kind in ODD:
        try:
            odd = odd_images(kind, source, labels, config.num_levels, args.seed)
        except UserError as error:
            print(f"no row '{kind}': {error}", file=sys.stderr)
            continue
        found, pixels = detector.examine(odd), odd.flatten(1).numpy()
        row = {"num_images": len(odd), "auroc": auroc(usual.score, found.score)}
        row["fpr"] = false_positive_rate(usual.score, found.score)
        row["p_values"] = {
            name: auroc(usual.p_values[name], p) for name, p in found.p_values.items()
        }
        row["others"] = {
            name: auroc(usual_of_others[name], score(pixels)) for name, score in others.items()
        }
        metrics["rows"][kind] = row
        print(line(kind, row))
    output.save(metrics)
    return metrics


def fit(detector: AnomalyDetector, data: ImageData, num: int, folder: Path) -> dict[str, Any]:
    """Fit to the first validation images and write the detector."""
    folder.mkdir(parents=True, exist_ok=True)  # before minutes of work
    levels = data.validation[:num]
    about = {"dataset": data.name, "split": "validation", "num_images": len(levels)}
    begin = time.perf_counter()
    detector.fit(levels).save(folder, **about)
    return {**about, "seconds": time.perf_counter() - begin}


def other_detectors(pixels: np.ndarray, seed: int) -> dict[str, Callable]:
    """Detectors fitted to pixels (N, D) in [0, 1], which give scores, higher for more ordinary."""
    # a second to import
    from sklearn.decomposition import PCA
    from sklearn.ensemble import IsolationForest
    from sklearn.neighbors import LocalOutlierFactor
    from sklearn.svm import OneClassSVM

    models = {
        "isolation forest": IsolationForest(random_state=seed),
        "one-class SVM": OneClassSVM(nu=0.1),
        "local outlier factor": LocalOutlierFactor(novelty=True),
    }
    scores = {name: model.fit(pixels).score_samples for name, model in models.items()}
    components = PCA(0.9, random_state=seed).fit(pixels)

    def unlike(x: np.ndarray) -> np.ndarray:
        return -np.square(x - components.inverse_transform(components.transform(x))).sum(1)

    return {**scores, "PCA": unlike}


def auroc(ordinary: np.ndarray, odd: np.ndarray) -> float:
    """The probability that an odd image scores below an ordinary one, ties by half."""
    from sklearn.metrics import roc_auc_score

    is_odd = np.repeat([0, 1], [len(ordinary), len(odd)])
    return float(roc_auc_score(is_odd, -np.concatenate([ordinary, odd])))


def false_positive_rate(ordinary: np.ndarray, odd: np.ndarray) -> float:
    """The share of ordinary images at or below the score that 95 percent of odd ones reach."""
    return float((ordinary <= np.quantile(odd, 0.95)).mean())


def precision_of_maps(detector: AnomalyDetector, images: Tensor, what: str) -> dict[str, float]:
    """The mean average precision of maps for the pixels of what is planted, and by chance."""
    from sklearn.metrics import average_precision_score

    found, where = planted(images, what)
    pairs = zip(detector.explain(found), where.numpy(), strict=True)
    precisions = [average_precision_score(mask.ravel(), map_.ravel()) for map_, mask in pairs]
    return {"precision": float(np.mean(precisions)), "chance": where.double().mean().item()}


def line(kind: str, row: dict[str, Any]) -> str:
    """A row of the table in words."""
    others = ", ".join(f"{name} {value:.3f}" for name, value in row["others"].items())
    return f"{kind:24s} AUROC {row['auroc']:.3f}, FPR {row['fpr']:.3f} | {others}"


if __name__ == "__main__":
    sys.exit(run_script(main))

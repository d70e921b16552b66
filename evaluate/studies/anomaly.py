"""Benchmark the anomaly detector of a model on unusual images, next to other detectors.

python evaluate/anomaly.py mnist --limit 300
python evaluate/anomaly.py mnist --fit 2000 --output_dir runs/mnist-detector

The first command prints two tables. The first table has the area under the ROC curve (AUROC) for
each kind of unusual image. The other detectors are those of scikit-learn, and ECOD if pyod is
installed; they see the pixels of validation images. The second table measures how well the maps
locate a part that was inserted into an image: the area under the precision-recall curve of its
pixels (AUPR), the share of its pixels among as many pixels of the highest values, and that share
by chance. anomaly.png shows one image of each kind with its map. The second command fits a
detector to validation images and saves it.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tyro
from torch import Tensor

from ebm_app.anomaly import AnomalyDetector
from ebm_app.cli.command_line import CommonFlags, ModelFlag, parse
from ebm_app.data.images import ImageData
from ebm_app.evaluation.held_out import images_for
from ebm_app.utils.fields import AtLeastTwo, Count, configuration, setting
from ebm_app.utils.files import save_figure
from ebm_app.utils.output import Output, to_markdown
from ebm_app.utils.processes import resolve_device
from studies.unusual_images import INSERTED, UNUSUAL, unusual_images

#: Rates of false alarms that are compared with the observed ones
RATES = (0.01, 0.05, 0.1)
#: Validation images that the detectors are fitted to
NUM_FITTED = 2000
#: Pixels (N, D) in [0, 1] -> scores (N,), higher for more ordinary images
Detector = Callable[[np.ndarray], np.ndarray]


@configuration(kw_only=True)
class Arguments(CommonFlags, ModelFlag):
    """Command-line arguments."""

    data_root: str = setting("folder of the data sets in torchvision's layout", "data")
    limit: AtLeastTwo = setting("number of ordinary test images", 1000)
    num_unusual: Annotated[AtLeastTwo, tyro.conf.arg(aliases=("--odd",))] = setting(
        "number of unusual images of each kind, made from the first test images", 250
    )
    fit: Count = setting("number of validation images to fit a detector to, which is saved", 0)
    output_dir: Path = setting("folder for the record or the detector", Path("runs/anomaly"))


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Fit and save a detector, or benchmark one; return the figures."""
    args = parse(Arguments, __doc__, argv)
    detector = AnomalyDetector(args.model, device=resolve_device(args.device))
    config = detector.model.config
    data = images_for(config, config.dataset, args.data_root)
    if args.fit:
        return fit_and_save(detector, data, args)
    output = Output(args.output_dir / "anomaly.json", args)
    fitted = data.validation[:NUM_FITTED]
    if not detector.is_fitted:
        detector.fit(fitted)
    ordinary = data.display(data.test[: args.limit])
    source = ordinary[: args.num_unusual]
    labels = None if data.labels is None else data.split_labels("test")[: len(source)]
    others = other_detectors(data.display(fitted).flatten(1).numpy(), args.seed)
    begin, expected = time.perf_counter(), detector.examine(ordinary)
    seconds = time.perf_counter() - begin
    pixels = ordinary.flatten(1).numpy()
    expected_by_others = {name: score(pixels) for name, score in others.items()}
    rows, maps = {}, {}
    for kind in UNUSUAL:
        images = unusual_images(kind, source, labels, config.num_levels, args.seed)
        findings, pixels = detector.examine(images), images.flatten(1).numpy()
        maps[kind] = images[0], findings.maps[0]
        rows[kind] = {"num_images": len(images), "auroc": auroc(expected.score, findings.score)}
        for name, score in others.items():
            rows[kind][name] = auroc(expected_by_others[name], score(pixels))
    figures = {
        "num_images": len(ordinary),
        "seconds_per_image": seconds / len(ordinary),
        "false_alarms": {str(rate): float((expected.p_value <= rate).mean()) for rate in RATES},
        "rows": rows,
        "planted": {kind: locate(detector, source, kind, args.seed) for kind in INSERTED},
    }
    print(to_markdown([{"unusual images": kind, **row} for kind, row in rows.items()]))
    print(to_markdown([{"inserted": kind, **row} for kind, row in figures["planted"].items()]))
    output.save(figures)
    save_maps(maps, output.folder / "anomaly.png")
    return figures


def fit_and_save(detector: AnomalyDetector, data: ImageData, args: Arguments) -> dict[str, Any]:
    """Fit a detector to validation images and write it into the output folder."""
    args.output_dir.mkdir(parents=True, exist_ok=True)  # fail before the minutes of fitting
    levels = data.validation[: args.fit]
    about = {"dataset": data.name, "split": "validation", "num_images": len(levels)}
    detector.fit(levels).save(args.output_dir, **about)
    return about


def other_detectors(pixels: np.ndarray, seed: int) -> dict[str, Detector]:
    """Return detectors fitted to the pixels (N, D) of ordinary images."""
    # these modules take a second to import
    from sklearn.decomposition import PCA
    from sklearn.ensemble import IsolationForest
    from sklearn.neighbors import LocalOutlierFactor
    from sklearn.svm import OneClassSVM

    seed %= 2**32  # the seeds of scikit-learn have 32 bits
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
    pca = PCA(0.9, random_state=seed).fit(pixels)

    def negative_reconstruction_error(x: np.ndarray) -> np.ndarray:
        return -np.square(x - pca.inverse_transform(pca.transform(x))).sum(1)

    return {**scores, "PCA": negative_reconstruction_error}


def auroc(ordinary: np.ndarray, unusual: np.ndarray) -> float:
    """Return the probability that an unusual image has a lower score than an ordinary one; a tie
    counts one half."""
    from sklearn.metrics import roc_auc_score

    is_unusual = np.repeat([0, 1], [len(ordinary), len(unusual)])
    return float(roc_auc_score(is_unusual, -np.concatenate([ordinary, unusual])))


def locate(detector: AnomalyDetector, images: Tensor, kind: str, seed: int) -> dict[str, Any]:
    """Return how well the maps locate a part that is inserted into images; means over images."""
    from sklearn.metrics import average_precision_score

    changed = INSERTED[kind](images, np.random.default_rng(seed))
    masks = (changed != images).any(1)
    is_changed = masks.any((1, 2))
    masks = masks[is_changed].flatten(1).numpy()
    maps = detector.explain(changed[is_changed]).reshape(masks.shape)
    pairs = list(zip(masks, maps, strict=True))
    top = [mask[np.argsort(-values)[: mask.sum()]].mean() for mask, values in pairs]
    return {
        "num_images": len(masks),
        "aupr": float(np.mean([average_precision_score(*pair) for pair in pairs])),
        "share": float(np.mean(top)),
        "by chance": float(masks.mean()),
    }


def save_maps(maps: Mapping[str, tuple[Tensor, np.ndarray]], path: Path) -> None:
    """Draw an image (C, H, W) of each kind, and below it the image with its map (H, W)."""
    # matplotlib takes a second to import
    from matplotlib.figure import Figure

    from ebm_app.evaluation.plots import DPI, EXCESS_LABEL, draw_image, overlay_excess

    figure = Figure(figsize=(1.3 * len(maps), 3), dpi=DPI, layout="constrained")
    columns = zip(figure.subplots(2, len(maps)).T, maps.items(), strict=True)
    for column, (kind, (image, excess)) in columns:
        for axes in column:
            draw_image(axes, image)
        overlay = overlay_excess(column[1], excess)
        column[0].set_title(kind, fontsize="x-small", wrap=True)
    place = {"location": "bottom", "shrink": 0.4, "aspect": 40}
    figure.colorbar(overlay, ax=figure.axes, label=EXCESS_LABEL, **place)
    save_figure(figure, path)

"""Benchmark of anomaly detection on the held-out images of a model.

python evaluate/anomaly_benchmark.py mnist --limit 60 --num_unusual 30

The table has the area under the ROC curve (AUROC) for each kind of unusual image of
unusual_images.py: by the log-likelihood of ``--num_likelihoods`` images, by the detector in
the model's folder, and by the best of four detectors of scikit-learn on pixels. anomaly.png shows
an image of each kind and its map.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ebm_app.command_line import CommonFlags, ModelFlag, parse, run_script
from ebm_app.config import EBMConfig
from ebm_app.data.datasets import load_images
from ebm_app.data.pictures import read_images, to_pil
from ebm_app.evaluation.held_out import images_for
from ebm_app.utils.fields import AtLeastTwo, Count, configuration, setting
from ebm_app.utils.files import save_figure
from ebm_app.utils.output import Output, to_markdown
from ebm_app.utils.processes import resolve_device
from unusual_images import KINDS, make_unusual

#: Nominal false-alarm rate at which the fraction of flagged ordinary images is measured
RATE = 0.05
#: Number of validation images to fit the other detectors
NUM_FITTED = 2000
#: Resolution of the picture of the maps, and upper end and label of its colour scale
DPI, MAX_EXCESS = 130, 6
EXCESS_LABEL = "excess (nine in ten ordinary images: below 1)"
#: Data set of a model -> data set whose test images are unusual for it
OTHER_DATASETS = {"mnist": "fashion_mnist", "fashion_mnist": "mnist", "cifar10": "fashion_mnist"}


@configuration(kw_only=True)
class Arguments(CommonFlags, ModelFlag):
    data_root: str = setting("folder of the data sets in torchvision's layout", "data")
    limit: AtLeastTwo = setting("number of ordinary test images", 1000)
    num_unusual: AtLeastTwo = setting(
        "unusual images of each kind, made from the first test images", 250
    )
    num_likelihoods: Count = setting("images of each kind whose log-likelihood is computed", 0)
    output_dir: Path = setting("folder of the record and the figure", Path("runs/anomaly"))


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Measure a detector on every kind of unusual image."""
    args = parse(Arguments, __doc__, argv)
    from ebm_app.anomaly import AnomalyDetector  # slow to import

    detector = AnomalyDetector.from_pretrained(args.model, device=resolve_device(args.device))
    ebm = detector.ebm_
    data = images_for(ebm.config, ebm.config.dataset, args.data_root)
    output = Output(args.output_dir / "anomaly.json", args)
    ordinary = data.display(data.test[: args.limit])
    begin, findings = time.perf_counter(), detector.examine(ordinary)
    metrics = {
        "num_images": len(ordinary),
        "seconds_per_image": (time.perf_counter() - begin) / len(ordinary),
        "false_alarms": float((findings.p_value <= RATE).mean()),
        "rows": {},
    }
    others = fit_other_detectors(data.display(data.validation[:NUM_FITTED]), args.seed)
    scores = {name: score(ordinary) for name, score in others.items()}
    likelihoods = ordinary[: args.num_likelihoods]
    if len(likelihoods):
        log_prob = ebm.log_prob(likelihoods, estimator="elbo", repeats=1).numpy()
    shown: dict[str, tuple[Tensor, np.ndarray]] = {}
    source = data.test[: args.num_unusual]
    for kind, levels in unusual_images(ebm.config, source, args.data_root, args.seed).items():
        unusual = data.display(levels)
        found = detector.examine(unusual)
        shown[kind] = unusual[0], found.maps[0]
        by_name = {name: auroc(scores[name], score(unusual)) for name, score in others.items()}
        best = max(by_name, key=by_name.get)
        row = {"num_images": len(unusual), "best other": by_name[best], "its name": best}
        if len(likelihoods):
            first = unusual[: len(likelihoods)]
            values = ebm.log_prob(first, estimator="elbo", repeats=1).numpy()
            row["likelihood"] = auroc(log_prob, values)
        metrics["rows"][kind] = row | {"detector": auroc(findings.score, found.score)}
    metrics["mean"] = float(np.mean([row["detector"] for row in metrics["rows"].values()]))
    print(to_markdown([{"unusual images": kind, **row} for kind, row in metrics["rows"].items()]))
    output.save(metrics)
    save_maps(shown, output.folder / "anomaly.png")
    return metrics


def unusual_images(
    config: EBMConfig, source: Tensor, data_root: str, seed: int
) -> dict[str, Tensor]:
    """Return levels (N, C, H, W) of each kind of unusual image, made from levels ``source``, and
    as many images of another data set."""
    kinds = {}
    for kind, change in KINDS.items():
        generator = torch.Generator().manual_seed(seed)
        kinds[kind] = make_unusual(source, config.num_levels, generator, {kind: change})
    if other := OTHER_DATASETS.get(config.dataset):
        kinds[other] = images_of(other, len(source), config, data_root)
    return kinds


def images_of(dataset: str, num: int, config: EBMConfig, data_root: str) -> Tensor:
    """Return the first test images of a data set as levels (N, C, H, W) of a model."""
    images = load_images(dataset, data_root).test[:num].permute(0, 2, 3, 1)
    pictures = map(to_pil, images.numpy())
    return read_images(pictures, config.image_shape, config.num_levels, resize=True)


def fit_other_detectors(images: Tensor, seed: int) -> dict[str, Callable[[Tensor], np.ndarray]]:
    """Return the scores of images (N, C, H, W) by detectors that are fitted to the pixels of
    ordinary images; a lower score is more anomalous."""
    # takes a second to import
    from sklearn.decomposition import PCA
    from sklearn.ensemble import IsolationForest
    from sklearn.neighbors import LocalOutlierFactor
    from sklearn.svm import OneClassSVM

    seed, pixels = seed % 2**32, images.flatten(1).numpy()
    pca = PCA(0.9, random_state=seed).fit(pixels)
    scores = {
        "isolation forest": IsolationForest(random_state=seed).fit(pixels).score_samples,
        "one-class SVM": OneClassSVM(nu=0.1).fit(pixels).score_samples,
        "local outlier factor": LocalOutlierFactor(novelty=True).fit(pixels).score_samples,
        "PCA": lambda x: -np.square(x - pca.inverse_transform(pca.transform(x))).sum(1),
    }
    return {
        name: lambda x, score=score: score(x.flatten(1).numpy()) for name, score in scores.items()
    }


def auroc(ordinary: np.ndarray, unusual: np.ndarray) -> float:
    """Return the probability that an unusual image scores below an ordinary one."""
    from sklearn.metrics import roc_auc_score

    is_unusual = np.repeat([0, 1], [len(ordinary), len(unusual)])
    return float(roc_auc_score(is_unusual, -np.concatenate([ordinary, unusual])))


def save_maps(maps: Mapping[str, tuple[Tensor, np.ndarray]], path: Path) -> None:
    """Draw an image (C, H, W) of each kind, and below it the image with its map (H, W)."""
    from matplotlib.figure import Figure  # takes a second to import

    figure = Figure(figsize=(1.3 * len(maps), 3), dpi=DPI, layout="constrained")
    columns = zip(figure.subplots(2, len(maps)).T, maps.items(), strict=True)
    for column, (kind, (image, excess)) in columns:
        for axes in column:
            axes.imshow(image.mean(0).numpy(), cmap="gray", vmin=0, vmax=1)
            axes.set(xticks=[], yticks=[])
        visible = np.ma.masked_less(excess, 1)
        overlay = column[1].imshow(visible, cmap="autumn_r", vmin=1, vmax=MAX_EXCESS)
        column[0].set_title(kind, fontsize="x-small", wrap=True)
    place = {"location": "bottom", "shrink": 0.4, "aspect": 40}
    figure.colorbar(overlay, ax=figure.axes, label=EXCESS_LABEL, **place)
    save_figure(figure, path)


if __name__ == "__main__":
    raise SystemExit(run_script(main))

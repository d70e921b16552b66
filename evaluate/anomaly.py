"""Benchmark of anomaly detection on the held-out images of a model.

python evaluate/anomaly.py mnist --limit 300

The table has the area under the ROC curve (AUROC) for each kind of unusual image of
``ebm_app.data.unusual``: by the log-likelihood of ``--num_likelihoods`` images, by the detector,
and by the best pixel-based detector of scikit-learn and, if installed, pyod. anomaly.png shows an
image of each kind and its map.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ebm_app.cli.command_line import CommonFlags, ModelFlag, parse, run_script
from ebm_app.config import EBMConfig
from ebm_app.data.images import load_images
from ebm_app.data.pictures import convert_image, to_pil
from ebm_app.data.unusual import KINDS, OTHER_KINDS, make_unusual
from ebm_app.evaluation.held_out import images_for
from ebm_app.utils.fields import AtLeastTwo, Count, configuration, setting
from ebm_app.utils.files import save_figure
from ebm_app.utils.output import Output, to_markdown
from ebm_app.utils.processes import resolve_device

FALSE_ALARM_RATES = (0.01, 0.05, 0.1)
#: Detectors of pyod
PYOD = ("ECOD", "COPOD", "HBOS", "KNN", "INNE")
#: Number of validation images to fit the other detectors, and this package's if not yet fitted.
NUM_FITTED = 2000
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

    detector = AnomalyDetector(args.model, device=resolve_device(args.device))
    config = detector.ebm.config
    data = images_for(config, config.dataset, args.data_root)
    output = Output(args.output_dir / "anomaly.json", args)
    fitted, ordinary = data.validation[:NUM_FITTED], data.display(data.test[: args.limit])
    if not detector.is_fitted:
        detector.fit(fitted)
    begin, result = time.perf_counter(), detector.examine(ordinary)
    rates = [rate for rate in FALSE_ALARM_RATES if rate >= detector.smallest_p_value]
    metrics = {
        "num_images": len(ordinary),
        "seconds_per_image": (time.perf_counter() - begin) / len(ordinary),
        "false_alarms": {str(rate): float((result.p_value <= rate).mean()) for rate in rates},
        "rows": {},
    }
    scores = {"detector": result.score}
    others = fit_other_detectors(data.display(fitted).flatten(1).numpy(), args.seed)
    scores |= {name: score(ordinary.flatten(1).numpy()) for name, score in others.items()}
    likelihoods = ordinary[: args.num_likelihoods]
    if len(likelihoods):
        scores["likelihood"] = detector.ebm.log_prob(likelihoods, estimator="elbo").numpy()
    shown: dict[str, tuple[Tensor, np.ndarray]] = {}
    source = data.test[: args.num_unusual]
    kinds = unusual_images(config, source, args.data_root, args.seed)
    for kind, levels in kinds.items():
        unusual = data.display(levels)
        examined, pixels = detector.examine(unusual), unusual.flatten(1).numpy()
        shown[kind] = unusual[0], examined.maps[0]
        by_name = {name: auroc(scores[name], score(pixels)) for name, score in others.items()}
        best = max(by_name, key=by_name.get)
        row = {"num_images": len(unusual), "best other": by_name[best], "its name": best}
        if len(likelihoods):
            values = detector.ebm.log_prob(unusual[: len(likelihoods)], estimator="elbo").numpy()
            row["likelihood"] = auroc(scores["likelihood"], values)
        metrics["rows"][kind] = row | {"detector": auroc(result.score, examined.score)}
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
    for kind, change in (KINDS | OTHER_KINDS).items():
        generator = torch.Generator().manual_seed(seed)
        kinds[kind] = make_unusual(source, config.num_levels, generator, {kind: change})
    if other := OTHER_DATASETS.get(config.dataset):
        kinds[other] = images_of(other, len(source), config, data_root)
    return kinds


def images_of(dataset: str, num: int, config: EBMConfig, data_root: str) -> Tensor:
    """Return the first test images of a data set as levels (N, C, H, W) of a model."""
    images = load_images(dataset, data_root).test[:num].permute(0, 2, 3, 1)
    pictures = map(to_pil, images.numpy())
    return torch.stack([convert_image(x, dataset, config, ("resize", "rgb")) for x in pictures])


def fit_other_detectors(pixels: np.ndarray, seed: int) -> dict[str, Callable]:
    """Return scores of pixels (N, D) by fitted detectors; a lower score is more anomalous."""
    # takes a second to import
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
    pca = PCA(0.9, random_state=seed).fit(pixels)
    scores["PCA"] = lambda x: -np.square(x - pca.inverse_transform(pca.transform(x))).sum(1)
    if find_spec("pyod") is not None:
        for name in PYOD:
            model = getattr(import_module(f"pyod.models.{name.lower()}"), name)().fit(pixels)
            scores[name] = lambda x, model=model: -model.decision_function(x)
    return scores


def auroc(ordinary: np.ndarray, unusual: np.ndarray) -> float:
    """Return the probability that an unusual image scores below an ordinary one."""
    from sklearn.metrics import roc_auc_score

    is_unusual = np.repeat([0, 1], [len(ordinary), len(unusual)])
    return float(roc_auc_score(is_unusual, -np.concatenate([ordinary, unusual])))


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


if __name__ == "__main__":
    raise SystemExit(run_script(main))

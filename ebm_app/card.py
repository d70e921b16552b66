"""The card of a model on the Hugging Face hub: what it is, in YAML and in words."""

from typing import Any

CARD_FILE = "README.md"
CARD = """
# {name}

A model of {dataset} images, {shape}, by `ebm_app`: a density with likelihoods and samples,
learned by conditional time score matching ([arXiv:2502.02300](https://arxiv.org/abs/2502.02300)).

```python
from ebm_app import {kind}

model = {kind}.from_pretrained("{repository}")
images = model.sample(4)  # (4, C, H, W) in [0, 1]
print(model.likelihood(images).bits_per_dim)
```
"""


def model_card(
    repository: str,
    kind: str,
    config: Any,
    license: str | None = None,
    bits_per_dim: float | None = None,
) -> str:
    """README.md of a repository, with the YAML that the hub reads at its head.

    >>> from ebm_app import EBM
    >>> card = model_card("me/digits", "EBM", EBM.from_pretrained("digits").config)
    >>> "library_name: ebm_app" in card.split("---")[1]
    True

    Args:
        repository: "owner/name". kind: the class that loads it. config: of the model.
        license: as the hub spells it, for instance "mit". bits_per_dim: on held-out images.
    """
    from huggingface_hub import EvalResult, ModelCardData  # network code, only where asked for

    name, dataset = repository.rpartition("/")[2], config.dataset.partition(":")[0]
    task = {"task_type": "unconditional-image-generation", "metric_type": "bits_per_dim"}
    data = {"dataset_type": dataset, "dataset_name": dataset, "metric_value": bits_per_dim}
    yaml = ModelCardData(
        library_name="ebm_app",
        pipeline_tag="unconditional-image-generation",
        tags=["energy-based-model", "density-estimation", "time-score-matching"],
        datasets=[dataset],
        license=license,
        model_name=name if bits_per_dim is not None else None,
        eval_results=[EvalResult(**task, **data)] if bits_per_dim is not None else None,
    )
    shape = " × ".join(map(str, config.image_shape))
    words = {"name": name, "dataset": dataset, "shape": shape, "kind": kind}
    return f"---\n{yaml}\n---\n{CARD.format(**words, repository=repository)}"

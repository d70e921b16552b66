"""The card of a model on the Hugging Face hub: what it is, in YAML and in words."""

import json
from typing import Any

CARD_FILE = "README.md"
CARD = """---
library_name: ebm_app
pipeline_tag: unconditional-image-generation
tags: [energy-based-model, density-estimation, time-score-matching]
datasets: [{quoted}]
---
# {name}

A model of {dataset} images, {shape}, by `ebm_app`: a density with likelihoods and samples,
learned by conditional time score matching ([arXiv:2502.02300](https://arxiv.org/abs/2502.02300)).

```python
from ebm_app import {kind}

model = {kind}.from_pretrained("{repository}")
images = model.sample(4)  # (4, C, H, W) in [0, 1]
print(model.log_prob(images).bits_per_dim)
```
"""


def model_card(repository: str, kind: str, config: Any) -> str:
    """README.md of a repository "owner/name", with the YAML that the hub reads at its head;
    ``kind`` is the class that loads the model, ``config`` the model's.

    >>> from ebm_app import EBM
    >>> card = model_card("me/digits", "EBM", EBM.from_pretrained("digits").config)
    >>> "library_name: ebm_app" in card.split("---")[1]
    True
    """
    dataset = config.dataset.partition(":")[0]
    return CARD.format(
        name=repository.rpartition("/")[2],
        dataset=dataset,
        quoted=json.dumps(dataset),  # as YAML has a text too
        shape=" × ".join(map(str, config.image_shape)),
        kind=kind,
        repository=repository,
    )

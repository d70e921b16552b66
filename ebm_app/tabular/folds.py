"""Rows in parts: those that a ratio is learned from, those that choose it, and those left out."""

import numpy as np
import torch
from torch import Tensor

from ebm_app.tabular.scores import row_groups

#: of the rows learned from, by which the step of least loss is found, and how many there are if
#: half of them are as many
VALIDATION_SHARE, MIN_VALIDATION = 0.15, 100


class Folds:
    """K parts of rows (N, d), by the number ``fold`` (N,) of each row's; copies of a row, the same
    number in ``groups`` (N,), stay together.

    >>> folds = Folds(np.arange(300.0)[:, None], 3, torch.Generator().manual_seed(0))
    >>> train, validation = folds.split(folds.fold != 0)
    >>> len(train), len(validation), folds.num_distinct
    (100, 100, 300)
    """

    def __init__(self, rows: np.ndarray, num_folds: int, generator: torch.Generator) -> None:
        self.groups = torch.from_numpy(row_groups(rows))
        self.num_distinct = int(self.groups.max()) + 1
        place = torch.randperm(self.num_distinct, generator=generator)
        self.fold = (place % num_folds)[self.groups]
        self.order = torch.randperm(self.num_distinct, generator=generator)[self.groups]
        # rows that follow each other in a file may be alike
        self.shuffle = torch.randperm(len(rows), generator=generator)

    def split(self, inside: Tensor) -> tuple[Tensor, Tensor]:
        """Numbers of the rows to learn from and to validate on, of those ``inside`` (N,)."""
        order = self.order[inside].unique()  # sorted, one for each distinct row
        least = min(MIN_VALIDATION, len(order) // 2)
        num = max(round(VALIDATION_SHARE * len(order)), least)
        validates = inside & (self.order < order[num])
        train, validation = (inside & ~validates)[self.shuffle], validates[self.shuffle]
        return self.shuffle[train], self.shuffle[validation]

"""draft"""
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ebm_app.numerics import seeded
from ebm_app.ratios.classifier import Classifiers, ClassifierTraining, Fit, Pairs
from ebm_app.ratios.data.columns import check_pair
from ebm_app.ratios.data.npy import as_columns
from ebm_app.ratios.data.rank_columns import prepared, row_groups
from ebm_app.ratios.lower_bounds import PairRatios, donsker_varadhan, influences, nwj, effective_pairs
from ebm_app.ratios.t_copula import TCopula


def run(x, y, K=3, training=ClassifierTraining(), seed=0, vshare=0.15, S=20):
    x, y = as_columns(x, "x"), as_columns(y, "y")
    check_pair(x, y)
    cx, cy = prepared(x), prepared(y)
    groups = torch.from_numpy(row_groups(x, y))
    gen = seeded("cpu", seed, 1)
    num_groups = int(groups.max()) + 1
    fold_of = (torch.randperm(num_groups, generator=gen) % K)
    val_of = torch.rand(num_groups, generator=gen) < vshare
    fold, val = fold_of[groups], val_of[groups]
    scores = np.concatenate([cx.scores, cy.scores], 1)
    pairs = Pairs(*(torch.from_numpy(c.features).float() for c in (cx, cy)))
    fits = []
    for k in range(K):
        for inside in (fold != k, fold == (k + 1) % K):
            rows = inside.nonzero().flatten()
            rows = rows[torch.randperm(len(rows), generator=gen)]
            cop = TCopula.fit(scores[rows.numpy()], x.shape[1])
            fits.append(Fit(cop, torch.from_numpy(cop.quantiles(scores)), rows[~val[rows]], rows[val[rows]]))
    cl = Classifiers(pairs, fits, training, gen)
    for _ in cl.train():
        pass
    res = [[], []]
    for k in range(K):
        rows = (fold == k).nonzero().flatten()
        rows = rows[torch.randperm(len(rows), generator=gen)]
        m = len(rows)
        shifts = (torch.randperm(m - 1, generator=gen)[:S] + 1).tolist()
        for which in range(2):
            f = 2 * k + which
            joint = cl.log_ratio(f, rows, rows)
            apart = torch.stack([cl.log_ratio(f, rows, rows.roll(-s)) for s in shifts])
            res[which].append((rows, PairRatios(joint, apart, shifts)))
    N = len(x)
    tot = []; infl = torch.zeros(2, N, dtype=torch.float64)
    for which in range(2):
        t = 0
        for rows, r in res[which]:
            v = donsker_varadhan(r); t += v * len(rows) / N
            infl[which, rows] = influences(r) + v
        tot.append(t); infl[which] -= t
    g = 1 / (K - 2)
    value = tot[0] + g * (tot[0] - tot[1])
    psi = infl[0] + g * (infl[0] - infl[1])
    pg = torch.zeros(num_groups, dtype=torch.float64).index_add_(0, groups, psi)
    rowse = (pg.square().sum().sqrt() / N).item()
    gain = g * (tot[0] - tot[1])
    plug = sum(r.joint.sum().item() for _, r in res[0]) / N
    ess = min(effective_pairs(r) for _, r in res[0])
    base = [sum(cl._base(fits[2*k+w], rows, rows).sum().item() for k,(rows,_) in enumerate(res[w]))/N for w in (0,1)]
    return dict(value=value, se=math.hypot(rowse, gain / 2), rowse=rowse, big=tot[0], small=tot[1], plug=plug, ess=ess, base=base, df=[round(f.copula.df,2) for f in fits], steps=cl.best_steps)

r"""Mutual information by nearest neighbours (Kraskov, Stögbauer and Grassberger 2004, eq. 8).

    I = psi(k) + psi(N) - < psi(n_x + 1) + psi(n_y + 1) >,   in nats,

with n_x and n_y the numbers of other rows whose x, and whose y, are nearer than the k-th neighbour
in the larger of both distances (maximum norm). It takes a second and is accurate in few
dimensions; in many it is far too low, and where rows repeat far too high. A column of few values
far apart is fine beside others that are continuous: the neighbours are then sought within a value,
and the formula is that of Ross 2014 (PLoS ONE 9, e87357).
"""

import numpy as np
import scipy


def neighbour_information(x: np.ndarray, y: np.ndarray, k: int = 5) -> float:
    """I(X; Y) in nats of columns (N, dx) and (N, dy) without equal rows."""
    tree = scipy.spatial.cKDTree
    distance = tree(np.hstack([x, y])).query(np.hstack([x, y]), k + 1, p=np.inf)[0][:, -1]
    below = np.nextafter(distance, 0)
    counts = [
        tree(part).query_ball_point(part, below, p=np.inf, return_length=True) for part in (x, y)
    ]
    psi = scipy.special.psi
    return float(psi(k) + psi(len(x)) - (psi(counts[0]) + psi(counts[1])).mean())

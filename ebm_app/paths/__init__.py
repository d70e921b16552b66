"""Conditional Gaussian paths. ``PATHS`` maps the values of ``--path`` to classes."""

from ebm_app.paths.base import GaussianPath, PathSample
from ebm_app.paths.families import LinearVPPath, LogSNRPath, SchrodingerBridgePath, VPPath
from ebm_app.paths.one_sided import OneSidedPath, require_one_sided

PATHS: dict[str, type[GaussianPath]] = {
    "linear_vp": LinearVPPath,
    "vp": VPPath,
    "schrodinger_bridge": SchrodingerBridgePath,
}

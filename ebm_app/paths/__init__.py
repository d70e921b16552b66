"""Conditional Gaussian paths, by the name that ``--path`` takes."""

from ebm_app.paths.base import GaussianPath, PathSample
from ebm_app.paths.bridge import SchrodingerBridgePath
from ebm_app.paths.one_sided import LinearVPPath, LogSNRPath, OneSidedPath, VPPath

PATHS: dict[str, type[GaussianPath]] = {
    "linear_vp": LinearVPPath,
    "vp": VPPath,
    "schrodinger_bridge": SchrodingerBridgePath,
}

"""log Z of a model by independent methods, each made of a few runs of annealed chains."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from torch import Tensor

from ebm_app.evaluation.log_z.ais import Annealing, Progress
from ebm_app.evaluation.log_z.estimates import LogZ, bennett, from_forward, from_reverse
from ebm_app.evaluation.log_z.runs import ChainRun, ChainTable

#: the method that runs where none is asked for
DEFAULT = "transported"
#: of those that ran, the first of these normalises the bits per dim: with samples of both sides
#: Bennett's error is calibrated however wide the weights are
HEADLINES = ("bridge", DEFAULT)
#: intermediate densities of importance sampling from the diffusion: they cancel, and show how far
#: it has come
STAGES = 8

#: (settings, name of the run) -> run; runs of different names must not share their noise
MakeRun = Callable[[Annealing, str], ChainRun]


class LogZResult(NamedTuple):
    """An estimate and the runs behind it.

    Attributes:
        estimate: of log Z.
        acceptance: mean over the temperatures with transitions, or None without any.
        reverse: a second estimate from reverse chains, where ``estimate`` is from forward ones.
        tables: the runs by name.
    """

    estimate: LogZ
    acceptance: float | None
    reverse: LogZ | None
    tables: dict[str, ChainTable]


class LogZMethods:
    """The methods for one model; a run that several of them need is made once.

    Args:
        make_run: (settings, name of its folder) -> run.
        plain, transported: settings of AIS and of transported AIS.
        pf_ode_steps, diffusion_steps: steps of the probability flow and of the reversed diffusion
            that importance sampling draws from.
        num_chains: forward chains of a run.
        data: points (N, *) of held-out data at the model's last time, for RAISE.
        progress: name of a run -> what shows its states as they come.
    """

    def __init__(
        self,
        make_run: MakeRun,
        plain: Annealing,
        transported: Annealing,
        pf_ode_steps: int,
        diffusion_steps: int,
        num_chains: int,
        data: Tensor,
        progress: Callable[[str], Progress],
    ) -> None:
        flow = replace(
            transported, num_temperatures=pf_ode_steps, transport_steps=1, steps_per_temperature=0
        )
        diffusion = replace(
            plain,
            num_temperatures=STAGES,
            transport="diffusion",
            transport_steps=math.ceil(diffusion_steps / STAGES),
            steps_per_temperature=0,
        )
        self.settings = {
            "ais": plain,
            "transported": transported,
            "flow": flow,
            "diffusion": diffusion,
        }
        self.make_run, self.num_chains, self.data = make_run, num_chains, data
        self.progress = progress
        self._runs: dict[str, ChainRun] = {}
        self._tables: dict[str, ChainTable] = {}

    def ais(self) -> LogZResult:
        """Annealed importance sampling through the model's p_t, from N(0, I)."""
        table = self._forward("ais")
        return LogZResult(
            from_forward(table.log_weight[-1]), _acceptance(table), None, {"ais": table}
        )

    def raise_(self) -> LogZResult:
        """The same chains in reverse, from held-out data: an upper bound of log Z as far as the
        data are samples of the model."""
        table = self._reverse("ais", self.data, "raise")
        return LogZResult(
            from_reverse(table.log_weight[-1]), _acceptance(table), None, {"raise": table}
        )

    def ode_importance(self) -> LogZResult:
        """Importance sampling from steps of the probability flow, whose density is exact."""
        table = self._forward("flow")
        return LogZResult(from_forward(table.log_weight[-1]), None, None, {"flow": table})

    def transported(self) -> LogZResult:
        """AIS whose chains move between temperatures by the probability flow; the reverse chains
        start from their weighted end points."""
        return self._both_ways("transported")

    def diffusion(self) -> LogZResult:
        """Importance sampling from the reversed diffusion, weighed by the diffusion itself, at one
        evaluation of the network a step; the reverse chains start from weighted end points."""
        return self._both_ways("diffusion")

    def bridge(self) -> LogZResult:
        """Bennett's ratio of samples of the probability flow and samples of the model, which are
        the end points of transported AIS by their weights."""
        table, flow = self._forward("transported"), self._forward("flow")
        share = table.log_weight[-1]
        back = self._reverse("flow", table.position, "flow, reverse")
        estimate = bennett(flow.log_weight[-1], back.log_weight[-1], share)
        return LogZResult(
            estimate,
            _acceptance(table),
            from_reverse(back.log_weight[-1], share),
            {"flow": flow, "flow, reverse": back},
        )

    def _both_ways(self, name: str) -> LogZResult:
        table = self._forward(name)
        log_weight = table.log_weight[-1]
        back = self._reverse(name, table.position, f"{name}, reverse")
        return LogZResult(
            from_forward(log_weight),
            _acceptance(table),
            from_reverse(back.log_weight[-1], log_weight),
            {name: table, f"{name}, reverse": back},
        )

    def _run(self, name: str) -> ChainRun:
        if name not in self._runs:
            self._runs[name] = self.make_run(self.settings[name], name)
            self._runs[name].tune(self.progress(f"{name}, pilot"))
        return self._runs[name]

    def _forward(self, name: str) -> ChainTable:
        if name not in self._tables:
            run = self._run(name)
            self._tables[name] = run.forward(self.num_chains, self.progress(name))
        return self._tables[name]

    def _reverse(self, name: str, points: Tensor, label: str) -> ChainTable:
        if label not in self._tables:
            self._tables[label] = self._run(name).reverse(points, self.progress(label))
        return self._tables[label]


METHODS: dict[str, Callable[[LogZMethods], LogZResult]] = {
    "ais": LogZMethods.ais,
    "raise": LogZMethods.raise_,
    "ode_importance": LogZMethods.ode_importance,
    "transported": LogZMethods.transported,
    "diffusion": LogZMethods.diffusion,
    "bridge": LogZMethods.bridge,
}


def _acceptance(table: ChainTable) -> float | None:
    moved = table.acceptance[~table.acceptance.isnan()]
    return moved.mean().item() if len(moved) else None


def raise_log_prob(table: ChainTable, log_density: Tensor) -> Tensor:
    """From RAISE's reverse chains: a conservative estimate (N,) of the log density, in nats, that
    the annealing process itself gives to their starting points (Burda et al. 2015, section 4).

    Args:
        log_density: (N,), log p_hat at the starting points.
    """
    return log_density - table.log_weight[-1].to(log_density)


def agreement(result: LogZResult) -> tuple[str, ...]:
    """A warning where forward and reverse estimates disagree; empty if all is well."""
    if result.reverse is None:
        return ()
    gap = result.reverse.log_z - result.estimate.log_z
    if abs(gap) <= 3:
        return ()
    return (
        f"forward and reverse differ by {gap:+.1f} nats: the chains do not follow p_t, "
        "take more temperatures or more transitions",
    )

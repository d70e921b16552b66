"""Which trainings an ablation compares, as a table: study -> variants -> flags of train/ebm.py."""

from collections.abc import Callable
from dataclasses import dataclass

from ebm_app.models.config import EBMConfig

AMBIENT, BASE = "ambient", "base"
#: flags by the name of a variant
Variants = dict[str, list[str]]


def settings_variants(config: EBMConfig) -> Variants:
    """One change at a time from the configuration of the preset."""
    channels, frequencies = config.net.block_out_channels, config.input_frequencies
    return {
        BASE: [],
        "variance_by_squared_error": ["--objective", "ctsm_m"],
        "uniform_times": ["--time_sampler", "uniform"],
        "papers_times": ["--time_sampler", "importance"],
        "plain_time": ["--time_input", "time"],
        "ctsm_v_of_moments": ["--objective", "ctsm_v"],
        "ctsm_v_normalised": ["--prediction", "normalised"],
        "ctsm_v_raw": ["--prediction", "raw"],
        "highest_frequencies": ["--input_frequencies", *(f"{f:g}" for f in frequencies[-2:])],
        "no_frequencies": ["--input_frequencies"],
        "fast_time": ["--t_scale", f"{4 * config.net.t_scale:g}"],
        "half_the_channels": ["--block_out_channels", *(f"{n // 2}" for n in channels)],
        "twice_the_channels": ["--block_out_channels", *(f"{2 * n}" for n in channels)],
        "no_average": ["--ema_decay", "0"],
        "ten_times_eps": ["--eps", f"{10 * config.eps:g}"],
        "tenth_of_eps": ["--eps", f"{config.eps / 10:g}"],
        "no_stein_head": ["--stein_factor", "0"],
        "bfloat16": ["--mixed_precision", "bf16"],
    }


def recipe_variants(config: EBMConfig) -> Variants:
    """What may change how much a second of training is worth, one change at a time from Adam."""
    channels = config.net.block_out_channels
    wide = ["--block_out_channels", *(f"{n}" for n in channels[:-1]), f"{2 * channels[-1]}"]
    attention = ["--attention_levels", f"{len(channels) - 1}"]
    muon = ["--optimizer", "muon"]
    return {
        BASE: [],
        "muon": muon,
        "muon_twice_the_rate": [*muon, "--learning_rate", "4e-3"],
        "muon_four_times_the_rate": [*muon, "--learning_rate", "8e-3"],
        "batch_of_32": ["--train_batch_size", "32"],
        "muon_batch_of_32": [*muon, "--train_batch_size", "32"],
        "muon_batch_of_32_centres": [
            *muon,
            *("--train_batch_size", "32", "--dequantisation", "truncated_normal"),
        ],
        "muon_batch_of_128": [*muon, "--train_batch_size", "128"],
        "muon_attention": [*muon, *attention],
        "muon_wide": [*muon, *wide],
        "muon_wide_attention": [*muon, *wide, *attention],
        "muon_half_the_channels": [
            *muon,
            "--block_out_channels",
            *(f"{n // 2}" for n in channels),
        ],
        "muon_two_blocks": [*muon, "--layers_per_block", f"{2 * config.net.layers_per_block}"],
    }


def latent_variants(config: EBMConfig) -> Variants:
    """The objectives; TSM trains no Stein head."""
    return {
        "tsm": ["--objective", "tsm", "--stein_factor", "0"],
        "ctsm_v": ["--objective", "ctsm_v", "--prediction", "normalised"],
        "ctsm_m": ["--objective", "ctsm_m"],
        "ctsm_m_deviance": ["--objective", "ctsm_m_deviance"],
    }


def network_input_variants(config: EBMConfig) -> Variants:
    """What the network reads, each with the parametrisation of this package and of the paper."""
    paper = ["--prediction", "raw", "--time_input", "time", "--time_sampler", "importance"]
    return {
        "u": ["--net_input", "u"],
        "x": ["--net_input", "x"],
        "u_paper": ["--net_input", "u", *paper],
        "x_paper": ["--net_input", "x", *paper],
    }


@dataclass(frozen=True)
class Ablation:
    """Trainings that are compared.

    Args:
        note: what the study compares.
        variants: of the configuration that a training has without further flags.
        spaces: "ambient", or kinds of flows in whose latent spaces the trainings are made.
        base: the variant that the others are compared with; None for the flow of their space.
        num_checkpoints: how many models of each training are scored, evenly spread over its steps;
            1 for the model that it keeps.
    """

    note: str
    variants: Callable[[EBMConfig], Variants]
    spaces: tuple[str, ...]
    base: str | None = None
    num_checkpoints: int = 1


STUDIES = {
    "settings": Ablation(
        "what each setting of a training is worth", settings_variants, (AMBIENT,), BASE
    ),
    "recipe": Ablation("what brings the bound down fastest", recipe_variants, (AMBIENT,), BASE),
    "latent": Ablation(
        "objectives in the latent spaces of flows",
        latent_variants,
        ("gaussian", "copula", "spline"),
    ),
    "network_input": Ablation(
        "what the network reads in a latent space",
        network_input_variants,
        ("copula",),
        num_checkpoints=6,
    ),
}

"""Class labels: p(x | y), guidance and class probabilities."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from conftest import GREY, SMALL, error_of, random_images
from exact import F64, Exact, ExactModel, generator, like_modes, normal

from ebm_app import EBM, train
from ebm_app.config import EBMConfig
from ebm_app.data.datasets import ImageData, load_images
from ebm_app.data.labels import class_labels, labels_of_images, labels_of_samples, names_of
from ebm_app.nets.model import ModelOutput
from ebm_app.paths import LinearVPPath
from ebm_app.sampling import DPMSampler, ProbabilityFlowSampler
from ebm_app.utils.random import LIKELIHOODS, BatchNoise, ImageNoise

MEANS = torch.stack([torch.full((1, 4, 4), value, dtype=F64) for value in (-0.4, 0.1, 0.5)])
STDS = (0.5, 0.4, 0.6)


class Labelled(ExactModel):
    """A mixture whose modes are the classes."""

    predicts_variance = False

    def forward(self, x, t, labels=None):
        if labels is None:
            return super().forward(x, t)
        joint, components, score = self.modes(x, t)
        one = like_modes(torch.nn.functional.one_hot(labels, len(joint)).T.double(), x)
        return ModelOutput((one * components).sum(0), (one * score).sum(0))


def labelled():
    return Labelled(LinearVPPath(), 1e-4, MEANS, STDS, [1 / 3] * 3, stein_channels=1)


def mode(k):
    return ExactModel(LinearVPPath(), 1e-4, MEANS[k][None], STDS[k : k + 1], stein_channels=1)


def test_points_of_several_times_keep_their_labels():
    """log p_t(x | y) and its gradient at one time for each point, in any order."""
    labels = torch.tensor([0, 1, 2, 1, 0, 2])
    x, t = normal((6, 1, 4, 4)), torch.tensor([0.3, 0.9, 0.3, 0.6, 0.9, 0.6], dtype=F64)
    density = Exact(labelled(), 64).conditioned_on(labels)
    values, gradients = density.log_density(x, t), density.log_density_gradient(x, t)
    for i, k in enumerate(labels):
        one, point = Exact(mode(k), 64), (x[i : i + 1], t[i].item())
        assert torch.allclose(values[i], one.log_density(*point)[0])
        assert torch.allclose(gradients[i], one.log_density_gradient(*point)[0])


def test_guidance_mixes_conditional_and_free_densities():
    model, x, t = labelled(), normal((6, 1, 4, 4)), torch.full((6,), 0.6, dtype=F64)
    labels = torch.tensor([0, 1, 2])
    outputs = [mode(k)(x[k::3], t[:2]) for k in range(3)]
    conditional = torch.stack([output.score for output in outputs], 1)
    components = torch.stack([output.components for output in outputs], 1).view(x.shape)
    free = model(x, t)
    for guidance_scale in (0.0, 1.0, 1.5):
        density = Exact(model, 64).conditioned_on(labels, guidance_scale)
        factor = 1 if guidance_scale == 1 else 2
        assert density.score_cost(0.6) == factor
        plain = Exact(model, 64).log_density_cost(0.6)
        assert density.log_density_cost(0.6) == factor * plain
        assert density.gradient_cost(0.6) == 2 * factor * plain
        score = torch.lerp(free.score, conditional.view(x.shape), guidance_scale)
        assert torch.allclose(density.output(x, t).score, score)
        expected = torch.lerp(free.components, components, guidance_scale)
        assert torch.allclose(density.output(x, t).components, expected)
        assert torch.allclose(density.log_density_gradient(x, 0.6), score, atol=1e-4)
    assert "of 3 labels, got 4 points" in error_of(density.output, x[:4], 0.6)


@pytest.mark.parametrize("sampler", [ProbabilityFlowSampler(20), DPMSampler(30)])
def test_conditional_samples_match_their_class(sampler):
    density = Exact(labelled(), 8).conditioned_on(torch.arange(3).repeat(400))
    *_, last = sampler.iterate(density, normal((1200, 1, 4, 4), 5), BatchNoise(generator(6)))
    for k, std in enumerate(STDS):
        x = last.x[k::3]
        error = std / (400 * 16) ** 0.5
        assert abs(x.mean() - MEANS[k].mean()) < 4.5 * error + 2e-3
        assert x.std().item() == pytest.approx(std, rel=0.03)


def test_class_probabilities_match_the_posterior():
    model = labelled()
    model.register_buffer("unused", torch.zeros(1, dtype=F64))  # sets device and dtype
    config = EBMConfig("images", (1, 4, 4), 256, t_margin=1e-4, num_classes=3)
    ebm = EBM(config, Exact(model, 64)).double()
    levels = (128 * (model.data((40, 1, 4, 4), 2) + 1)).floor().clamp(0, 255).byte()
    noise = ImageNoise(4, range(40), LIKELIHOODS)
    point = ebm.dequantise(levels, noise)
    x, t = ebm.model.path.diffuse(point.y, point.t, 0.2, noise.normal_like(point.y))
    expected = model.modes(x, t)[0].T.softmax(1)
    exact = EBM(replace(config, stein_head=False), Exact(model, 64)).double()
    found = exact.classify(levels, seed=4, num_draws=1)  # by the time integral
    assert (found - expected).abs().max() < 1e-3 and 0.2 < expected.std()
    # the noise of the image and of the bound is averaged
    free = model.modes(point.y, point.t)[0].T.softmax(1)
    found = ebm.classify(levels, seed=4, num_draws=32)
    assert torch.allclose(found.sum(1), torch.ones(40, dtype=F64))
    assert (found.argmax(1) == free.argmax(1)).double().mean() > 0.9
    assert torch.equal(found[:3], ebm.classify(levels[:3], seed=4, num_draws=32, batch_size=2))
    for noise_std in (2e4, 1e30):
        assert "noise_std" in error_of(ebm.classify, levels, noise_std=noise_std)


def test_class_conditional_model_is_trained(tmp_path):
    images, labels = random_images(30, 8), torch.arange(30) % 3
    settings = {**SMALL, "num_levels": 17, "max_train_steps": 3, "learning_rate": 0.1}
    settings["lr_warmup_steps"] = 0
    free = train(images, tmp_path / "free", **settings)
    ebm = train(images, tmp_path / "labelled", labels=labels, **settings)
    assert ebm.config.num_classes == 3 and free.config.num_classes == 0
    again, levels = EBM.from_pretrained(tmp_path / "labelled"), images[:2]
    without, first = (ebm.log_prob(levels, repeats=1, labels=names) for names in (None, [0, 1]))
    assert torch.equal(again.log_prob(levels, repeats=1), without)
    assert not torch.equal(without, first)
    assert again.sample(2, labels=[1, 2], guidance_scale=2.0, num_steps=2).shape == (2, 1, 8, 8)
    assert "labels" in error_of(free.sample, 2, guidance_scale=2.0)
    assert "without labels" in error_of(free.sample, 2, labels=1)
    assert "classify" in error_of(free.classify, levels)


def test_labels_without_a_stein_head():
    ebm = EBM(replace(GREY, num_classes=3, stein_head=False, prediction="normalised"))
    settings = {"num_steps": 2, "labels": 1, "guidance_scale": 2.0}
    assert ebm.sample(2, **settings).shape == (2, 1, 8, 8)


def test_labels_are_expanded_and_checked():
    names = ("ant", "bee", "0", "fly", "moth")
    assert labels_of_images(2, 3, names).tolist() == [2, 2, 2]
    assert labels_of_images("fly", 2, names).tolist() == [3, 3]
    # a name takes precedence over a number
    assert class_labels(["0", "1", 4], names).tolist() == [2, 1, 4]
    masked = np.ma.masked_array([0], [True])
    for labels in (0.5, True, [-1], [5], ["7"], "any", [], [[0]], [None], masked):
        error_of(class_labels, labels, names)
    error_of(class_labels, 0, ())


def test_likelihood_takes_one_label_or_one_per_image():
    names = tuple("1234567890")
    ebm = EBM(replace(GREY, num_classes=10, class_names=names)).eval()
    torch.nn.init.normal_(ebm.model.net.unet.conv_out.weight, std=0.1)
    images = load_images("digits").test[:3]
    whole = ebm.log_prob(images, labels=["1", 2, "3"], repeats=1)
    assert torch.equal(ebm.log_prob(images, labels=1, repeats=1)[:1], whole[:1])
    for labels in ([1, 2], torch.tensor([1, 2]), ["1", "2"]):
        assert "one for each of 3 images, got 2" in error_of(ebm.log_prob, images, labels=labels)
    assert labels_of_samples([1, 2], 3, ebm.config.classes(), (), 0).tolist() == [0, 1, 0]
    assert "at most 3" in error_of(labels_of_samples, [1] * 4, 3, ebm.config.classes(), (), 0)
    assert labels_of_samples("none", 2, ("a", "none"), (), 0).tolist() == [1, 1]


def test_labels_of_samples_follow_the_training_images(tmp_path):
    images, labels = random_images(40, 8), torch.tensor([0, 0, 0, 2] * 10)
    data = ImageData.from_tensors(images, images[:2], 17, labels=labels)
    frequencies = (0.75, 0.0, 0.25)
    assert data.class_frequencies == frequencies
    settings = {**SMALL, "num_levels": 17, "max_train_steps": 1}
    ebm = train(images, tmp_path, validation=images[:2], labels=labels, **settings)
    assert EBM.from_pretrained(tmp_path).config.class_frequencies == frequencies
    drawn = labels_of_samples(None, 4000, ("a", "b", "c"), frequencies, seed=1)
    counts = drawn.bincount(minlength=3)  # a standard deviation of 27
    assert counts[1] == 0 and (counts[0] - 3000).abs() < 100
    equal = labels_of_samples(None, 3000, ("a", "b", "c"), (), seed=1).bincount()
    assert (equal - 1000).abs().max() < 100
    torch.nn.init.normal_(ebm.model.net.unet.conv_out.weight, std=0.1)
    torch.nn.init.normal_(ebm.model.net.unet.class_embedding.weight)
    few = labels_of_samples(None, 6, ("0", "1", "2"), frequencies, seed=3).tolist()
    samples = ebm.sample(6, seed=3, num_steps=2)
    assert torch.equal(samples, ebm.sample(6, seed=3, num_steps=2, labels=few))
    assert not torch.equal(samples, ebm.sample(6, seed=3, num_steps=2, labels="none"))
    with pytest.raises(ValueError, match="sum to 0.5"):
        replace(ebm.config, class_frequencies=(0.5, 0.0, 0.0))


def test_integers_are_the_classes_of_that_number():
    names = ("1", "2", "10")  # folders without a folder 0
    assert class_labels([2, "10", 1], names).tolist() == [1, 2, 0]
    assert class_labels(torch.tensor([10]), names).tolist() == [2]
    assert "unknown class '0'" in error_of(class_labels, 0, names)
    assert class_labels([2, 1], ("2", "cat", "dog")).tolist() == [0, 1]
    assert names_of(torch.tensor([1, 2, -1]), names) == ["2", "10", -1]


def test_bpd_script_conditions_on_labels(script, tmp_path):
    ebm, data = EBM(replace(GREY, num_classes=10)).eval(), load_images("digits")
    torch.nn.init.normal_(ebm.model.net.unet.conv_out.weight, std=0.1)
    ebm.save_pretrained(tmp_path)
    flags = [str(tmp_path), "--limit", "4", "--repeats", "1", "--split", "validation"]
    flags += ["--output_dir", str(tmp_path)]
    found = [script("evaluate/bpd.py").main([*flags, *more]) for more in ([], ["--labels"])]
    exact = ebm.likelihood(
        data.validation[:4], repeats=1, labels=data.split_labels("validation")[:4]
    )
    assert found[1]["bits_per_dim"] == pytest.approx(exact.bits_per_dim.mean().item(), abs=1e-6)
    assert found[0]["bits_per_dim"] != pytest.approx(found[1]["bits_per_dim"], abs=1e-4)

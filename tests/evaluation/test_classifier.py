"""The classifier: accuracy, reproducible training, and random shifts."""

import pytest
import torch

from ebm_app.data.images import load_images
from ebm_app.evaluation.classifier import train_classifier


@pytest.fixture(scope="module")
def digits():
    return load_images("digits")


def test_classifier_learns_the_digits(digits):
    train, _, test = digits.labels
    images = digits.display(digits.test)
    classifier = train_classifier(digits.display(digits.train), train, 10, seed=0, num_steps=150)
    features, logits = classifier.features_and_logits(images, batch_size=100)
    assert (logits.argmax(1) == test).double().mean() > 0.95
    assert features.shape == (297, 64) and not features.requires_grad
    assert torch.allclose(features, classifier.features(images), atol=1e-4)
    assert torch.allclose(logits, classifier(images), atol=1e-4)


def test_weights_depend_only_on_the_seed(digits):
    images, labels = digits.display(digits.train), digits.labels[0]
    before = torch.random.get_rng_state()
    one, same, other = (
        train_classifier(images, labels, 10, seed, num_steps=3).state_dict() for seed in (1, 1, 2)
    )
    assert torch.equal(before, torch.random.get_rng_state())
    assert all(torch.equal(one[key], same[key]) for key in one)
    assert not torch.equal(one["body.0.weight"], other["body.0.weight"])

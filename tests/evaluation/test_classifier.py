"""The classifier learns the class labels of images."""

import pytest
import torch
from exact import generator

from ebm_app.data.images import load_images
from ebm_app.evaluation.classifier import randomly_shifted, train_classifier


@pytest.fixture(scope="module")
def digits():
    """(training images, their labels, test images, theirs)."""
    data = load_images("digits")
    train, _, test = data.labels
    return data.train / 16, train, data.test / 16, test


def test_the_classifier_learns_the_digits_in_a_moment(digits):
    images, labels, test_images, test_labels = digits
    classifier = train_classifier(images, labels, 10, seed=0, num_steps=150)
    features, logits = classifier.features_and_logits(test_images, batch_size=100)
    assert (logits.argmax(1) == test_labels).double().mean() > 0.95
    assert features.shape == (297, 64) and logits.shape == (297, 10)
    assert not classifier.training and not features.requires_grad
    assert torch.allclose(features, classifier.features(test_images), atol=1e-4)
    assert torch.allclose(logits, classifier(test_images), atol=1e-4)


def test_training_depends_on_its_seed_alone(digits):
    images, labels, *_ = digits
    before = torch.random.get_rng_state()
    one, same, other = (
        train_classifier(images, labels, 10, seed, num_steps=3).state_dict() for seed in (1, 1, 2)
    )
    assert torch.equal(before, torch.random.get_rng_state())
    assert all(torch.equal(one[key], same[key]) for key in one)
    assert not torch.equal(one["head.weight"], other["head.weight"])
    assert not torch.equal(one["body.0.weight"], other["body.0.weight"])


def test_shifts_move_each_image_by_up_to_an_eighth_of_its_side():
    images = torch.zeros(200, 2, 8, 16)
    images[:, 0, 4, 7], images[:, 1, 4, 8] = 1, 2
    moved = randomly_shifted(images, generator())
    places = moved[:, 0].flatten(1).argmax(1)
    rows, columns = places // 16, places % 16
    assert set(rows.tolist()) == {3, 4, 5} and set(columns.tolist()) == {5, 6, 7, 8, 9}
    assert torch.equal(moved[:, 1].flatten(1).argmax(1), places + 1), "channels move together"
    assert torch.equal(moved.sum((2, 3)), images.sum((2, 3)))
    edge = randomly_shifted(torch.ones(50, 1, 8, 8), generator())
    assert edge.shape == (50, 1, 8, 8) and edge.amin() == 0 and (edge.sum((1, 2, 3)) >= 49).all()

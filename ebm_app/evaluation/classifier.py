"""A small convolutional classifier, whose features and logits measure the quality of samples.

It replaces the Inception network of the usual Fréchet distance, for which images of 8 x 8 to
32 x 32 pixels are too small. Training it on the labels of a data set takes seconds.
"""

from collections.abc import Sequence
from itertools import islice

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from tqdm.auto import tqdm

from ebm_app.utils.fitting import fit
from ebm_app.utils.random import initial_weights

NUM_FEATURES, BATCH_SIZE, LEARNING_RATE = 64, 64, 2e-3


class Classifier(nn.Module):
    """Convolutional classifier. Pooling reduces the shorter side to at most 7 pixels.

    The 64 features are the outputs of a linear layer before the ReLU, where they are closer to
    Gaussian.

    Args:
        image_shape: (C, H, W), at least 2 x 2 pixels.
        num_classes: number of classes.
    """

    def __init__(self, image_shape: Sequence[int], num_classes: int) -> None:
        super().__init__()
        channels, *size = image_shape
        side, width, layers = min(size), 32, []

        def block(before: int, after: int) -> list[nn.Module]:
            convolution = nn.Conv2d(before, after, 3, padding=1, bias=False)
            return [convolution, nn.BatchNorm2d(after), nn.ReLU()]

        while not layers or side > 7:
            layers += [*block(channels, width), nn.MaxPool2d(2)]
            channels, width, side = width, min(2 * width, 128), side // 2
        layers += [*block(channels, width), *block(width, width)]
        layers += [nn.AdaptiveAvgPool2d(2), nn.Flatten()]
        self.body = nn.Sequential(*layers, nn.Linear(4 * width, NUM_FEATURES))
        self.head = nn.Linear(NUM_FEATURES, num_classes)

    def features(self, images: Tensor) -> Tensor:
        """Return features (B, 64) of images (B, C, H, W) in [0, 1]."""
        return self.body(images)

    def forward(self, images: Tensor) -> Tensor:
        """Return logits (B, num_classes) of images (B, C, H, W) in [0, 1]."""
        return self.head(F.relu(self.features(images)))

    @torch.no_grad()
    def features_and_logits(self, images: Tensor, batch_size: int = 500) -> tuple[Tensor, Tensor]:
        """Return features (N, 64) and logits (N, num_classes) of N images, on the CPU."""
        device = self.head.weight.device
        batches = [self.features(batch.to(device)) for batch in images.split(batch_size)]
        features = torch.cat(batches)
        return features.cpu(), self.head(F.relu(features)).cpu()


def train_classifier(
    images: Tensor, labels: Tensor, num_classes: int, seed: int, num_steps: int = 600
) -> Classifier:
    """Train a classifier by cross-entropy on randomly shifted images.

    The weights depend only on the arguments, and the global random state is not changed.

    Args:
        images: (N, C, H, W) in [0, 1], on the device to train on.
        labels: int64 (N,).
        num_steps: number of batches, drawn with replacement.

    Returns:
        The classifier in evaluation mode, on the device of the images.
    """
    with initial_weights(seed):
        classifier = Classifier(images.shape[1:], num_classes).to(images.device)
    generator = torch.Generator().manual_seed(seed)

    def loss(_: int) -> Tensor:
        rows = torch.randint(len(images), (BATCH_SIZE,), generator=generator)
        batch = randomly_shifted(images[rows.to(images.device)], generator)
        return F.cross_entropy(classifier(batch), labels[rows].to(images.device))

    # leave out the last step of the schedule, whose learning rate is 0
    steps = islice(fit(classifier.parameters(), loss, num_steps + 1, LEARNING_RATE), num_steps)
    for _ in tqdm(steps, "classifier", num_steps):
        pass
    return classifier.eval()


def randomly_shifted(images: Tensor, generator: torch.Generator) -> Tensor:
    """Shift each image (C, H, W) of a batch by up to an eighth of its side along both axes, and
    fill with zeros.

    Args:
        generator: on the CPU, so that the shifts are the same on every device.
    """
    height, width = images.shape[2:]
    down, right = max(1, height // 8), max(1, width // 8)
    padded = F.pad(images, (right, right, down, down))
    rows = torch.randint(2 * down + 1, (len(images),), generator=generator).tolist()
    columns = torch.randint(2 * right + 1, (len(images),), generator=generator).tolist()
    windows = zip(padded, rows, columns, strict=True)
    return torch.stack([image[:, i : i + height, j : j + width] for image, i, j in windows])

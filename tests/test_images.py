"""Image data: named sets, folders of files, level maps, and the sentence behind each mistake."""

import io
import pickle
import struct
import zlib
from urllib.error import URLError

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import datasets

from ebm_app.data import DATASETS, ImageData, dequantise, load_images, quantise, to_levels
from ebm_app.errors import UserError

SPLITS = ("train", "validation", "test")


def noise_image(size, channels, seed):
    shape = (size[1], size[0], channels)[: 2 if channels == 1 else 3]
    pixels = np.random.RandomState(seed).randint(0, 256, shape, dtype=np.uint8)
    return Image.fromarray(pixels)


def fill(folder, number=10, size=(6, 5), channels=1, suffix=".png"):
    """Write images of noise, each with its own seed, so that no two are equal."""
    folder.mkdir(parents=True, exist_ok=True)
    for i in range(number):
        noise_image(size, channels, seed=i).save(folder / f"{i:03d}{suffix}")
    return folder


def load_folder(path, resolution=None):
    return load_images(f"folder:{path}", resolution=resolution)


def error_of(call, *args, **kwargs):
    with pytest.raises(UserError) as caught:
        call(*args, **kwargs)
    message = str(caught.value)
    assert "\n" not in message and ": " in message, f"not one sentence: {message}"
    return message


def write_idx(path, array):
    header = struct.pack(">BBBB", 0, 0, 8, array.ndim) + struct.pack(
        ">" + "I" * array.ndim, *array.shape
    )
    path.write_bytes(header + array.tobytes())


@pytest.fixture(params=[("mnist", "MNIST"), ("fashion_mnist", "FashionMNIST")], ids=lambda p: p[0])
def mnist(request, tmp_path):
    """(name, data root, raw folder) of 30 + 5 images of 28 x 28, image n holding the value n."""
    name, class_name = request.param
    raw = tmp_path / class_name / "raw"
    raw.mkdir(parents=True)
    for part, number in (("train", 30), ("t10k", 5)):
        values = np.arange(number, dtype=np.uint8)
        write_idx(raw / f"{part}-labels-idx1-ubyte", values % 10)
        write_idx(raw / f"{part}-images-idx3-ubyte", np.tile(values[:, None, None], (1, 28, 28)))
    return name, tmp_path, raw


def first_pixels(split):
    return split[:, 0, 0, 0].tolist()


# ---------------------------------------------------------------------------------- ImageData


def test_image_data_checks_its_splits_and_names():
    levels = torch.zeros(4, 3, 2, 5, dtype=torch.uint8)
    data = ImageData("x", 2, levels, levels[:2], levels[:1])
    assert data.image_shape == (3, 2, 5) and data.num_dims == 30
    assert [len(data.split(s)) for s in SPLITS] == [4, 2, 1]
    message = error_of(data.split, "valid")
    assert all(name in message for name in ("'valid'", *SPLITS))
    for wrong in (levels.float(), levels[0], levels[:0], levels + 2, levels[..., :4]):
        with pytest.raises(ValueError):
            ImageData("x", 2, levels, wrong, levels)
    with pytest.raises(ValueError, match="between 2 and 256"):
        ImageData("x", 257, levels, levels, levels)


# -------------------------------------------------------------------------------- named data


def test_digits_are_split_exhaustively_and_always_alike():
    data = load_images("digits")
    assert data.num_levels == 17 and data.image_shape == (1, 8, 8) and data.num_dims == 64
    assert [len(data.split(s)) for s in SPLITS] == [1400, 100, 297]
    everything = torch.cat([data.split(s) for s in SPLITS])
    assert everything.dtype == torch.uint8 and everything.min() == 0 and everything.max() == 16
    from sklearn.datasets import load_digits

    original = load_digits().images.astype(np.uint8).reshape(1797, -1)
    # no two of the digits are equal, so that equal sets of rows mean disjoint, exhaustive splits
    assert len({row.tobytes() for row in original}) == 1797
    assert sorted(r.tobytes() for r in everything.flatten(1).numpy()) == sorted(
        row.tobytes() for row in original
    )
    assert torch.equal(data.train, load_images("digits").train)
    # RandomState(0) draws this permutation in every version of numpy
    assert torch.equal(data.train[0, 0].flatten(), torch.from_numpy(original[1081]))


def test_mnist_holds_the_last_sixth_out(mnist):
    name, root, _ = mnist
    data = load_images(name, root)
    assert data.num_levels == 256 and data.image_shape == (1, 28, 28) and data.name == name
    assert first_pixels(data.train) == list(range(25))
    assert first_pixels(data.validation) == list(range(25, 30))
    assert first_pixels(data.test) == list(range(5))


def test_mnist_of_full_size_splits_as_in_the_paper(mnist):
    name, root, raw = mnist
    write_idx(raw / "train-images-idx3-ubyte", np.zeros((60_000, 2, 2), np.uint8))
    write_idx(raw / "t10k-images-idx3-ubyte", np.zeros((10_000, 2, 2), np.uint8))
    data = load_images(name, root)
    assert [len(data.split(s)) for s in SPLITS] == [50_000, 10_000, 10_000]


def test_mnist_names_missing_files(mnist, monkeypatch):
    name, root, raw = mnist
    (raw / "t10k-labels-idx1-ubyte").unlink()
    (raw / "train-images-idx3-ubyte").unlink()
    message = error_of(load_images, name, root)
    for part in (str(raw), str(root), "--data_root", "--download", "t10k-labels", "train-images"):
        assert part in message
    assert "train-labels" not in message and "uncompressed" in message
    monkeypatch.chdir(root / "..")
    assert "'data'" in error_of(load_images, name), "the folder 'data' is the default"


@pytest.mark.parametrize("kept", [0, 3, 10, 16, 1000])
def test_truncated_mnist_is_damaged(mnist, kept):
    name, root, raw = mnist
    file = raw / "train-images-idx3-ubyte"
    file.write_bytes(file.read_bytes()[:kept])
    for download in (False, True):
        message = error_of(load_images, name, root, download=download)
        assert name in message and str(raw) in message and "truncated" in message


@pytest.mark.parametrize(
    "content",
    [
        b"\x1f\x8b\x08\x00compressed",
        np.zeros((5, 28, 28), np.uint8),
        np.zeros((9, 8, 8), np.uint8),
    ],
    ids=["gzip", "too few", "another size"],
)
def test_wrong_mnist_is_damaged(mnist, content):
    name, root, raw = mnist
    file = raw / "train-images-idx3-ubyte"
    file.write_bytes(content) if isinstance(content, bytes) else write_idx(file, content)
    assert name in error_of(load_images, name, root)


@pytest.mark.parametrize("name", ["mnist", "cifar10"])
def test_download_only_on_request_and_its_failure(name, tmp_path, monkeypatch):
    asked = []

    def fail(url, *args, **kwargs):
        asked.append(url)
        raise URLError("no network")

    monkeypatch.setattr("urllib.request.urlopen", fail)
    error_of(load_images, name, tmp_path)
    assert not asked and not list(tmp_path.iterdir())
    message = error_of(load_images, name, tmp_path, download=True)
    assert asked
    assert name in message and "download" in message and str(tmp_path) in message
    assert "no network" in message and DATASETS[name].files[0] in message


@pytest.fixture
def cifar(tmp_path, monkeypatch):
    """(data root, batches): fake CIFAR-10 batches of two images, their MD5 taken as published."""
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    batches = {}
    for i, name in enumerate(DATASETS["cifar10"].files[:-1]):
        pixels = np.random.RandomState(i).randint(0, 256, (2, 3072), dtype=np.uint8)
        batches[name] = torch.from_numpy(pixels).view(2, 3, 32, 32)
        (folder / name).write_bytes(pickle.dumps({"data": pixels, "labels": [0, 1]}))
    (folder / "batches.meta").write_bytes(pickle.dumps({"label_names": ["a", "b"]}))

    def md5(name):
        return datasets.utils.calculate_md5(folder / name)

    train = [[name, md5(name)] for name in batches if name != "test_batch"]
    monkeypatch.setattr(datasets.CIFAR10, "train_list", train)
    monkeypatch.setattr(datasets.CIFAR10, "test_list", [["test_batch", md5("test_batch")]])
    meta = {**datasets.CIFAR10.meta, "md5": md5("batches.meta")}
    monkeypatch.setattr(datasets.CIFAR10, "meta", meta)
    return tmp_path, batches


def test_cifar_is_channels_first(cifar):
    root, batches = cifar
    data = load_images("cifar10", root)
    assert data.image_shape == (3, 32, 32) and data.num_levels == 256
    train = torch.cat([batches[f"data_batch_{i}"] for i in range(1, 6)])
    assert torch.equal(torch.cat([data.train, data.validation]), train)
    assert torch.equal(data.test, batches["test_batch"]) and len(data.validation) == 1


def test_cifar_of_another_origin_is_never_unpickled(cifar, monkeypatch):
    root, _ = cifar
    (root / "cifar-10-batches-py" / "data_batch_3").write_bytes(b"changed")
    monkeypatch.setattr(pickle, "load", lambda *a, **k: pytest.fail("unpickled"))
    assert "cifar10" in error_of(load_images, "cifar10", root)
    (root / "cifar-10-batches-py" / "data_batch_3").unlink()
    message = error_of(load_images, "cifar10", root)
    assert "cifar-10-batches-py" in message and "data_batch_3" in message
    assert "data_batch_2" not in message


def test_unknown_name_and_resolution_of_named_data():
    message = error_of(load_images, "imagenet")
    assert all(name in message for name in ("'imagenet'", "folder:PATH", *DATASETS))
    assert set(DATASETS) == {"digits", "mnist", "fashion_mnist", "cifar10"}
    assert all(source.description for source in DATASETS.values())
    for name in DATASETS:
        message = error_of(load_images, name, resolution=16)
        assert "resolution" in message and "folder:PATH" in message
    assert "folder:PATH" in error_of(load_images, "folder:")


# ------------------------------------------------------------------------------------ folders


@pytest.mark.parametrize("channels", [1, 3])
def test_folder_splits_are_disjoint_exhaustive_and_fixed(tmp_path, channels):
    fill(tmp_path / "a" / "deep", 12, channels=channels)
    fill(tmp_path / "b", 23, channels=channels, suffix=".bmp")
    for i in range(12):  # the images of a/deep are the first of b: make them differ
        noise_image((6, 5), channels, 100 + i).save(tmp_path / "a" / "deep" / f"{i:03d}.png")
    (tmp_path / "notes.txt").write_text("no image")
    data = load_folder(tmp_path)
    assert data.num_levels == 256 and data.image_shape == (channels, 5, 6)
    assert data.name == f"folder:{tmp_path}"
    assert [len(data.split(s)) for s in SPLITS] == [29, 3, 3]
    everything = torch.cat([data.split(s) for s in SPLITS])
    files = sorted(tmp_path.rglob("*.png")) + sorted(tmp_path.rglob("*.bmp"))
    pixels = np.stack([np.asarray(Image.open(f)).reshape(5, 6, channels) for f in files])
    expected = torch.from_numpy(pixels).permute(0, 3, 1, 2)
    assert len(expected.unique(dim=0)) == 35
    assert torch.equal(
        everything, expected[torch.from_numpy(np.random.RandomState(0).permutation(35))]
    )


def test_folder_formats_agree_on_flat_images(tmp_path):
    suffixes = ("png", "jpg", "jpeg", "bmp", "webp", "tif", "tiff", "PNG", "JPG", "Tif")
    for i, suffix in enumerate(suffixes):
        Image.new("L", (16, 16), 100).save(tmp_path / f"{i}.{suffix}")
    photograph = Image.new("L", (16, 16), 100)
    # as some telephones write it: a second frame, which is no image of the set
    photograph.save(tmp_path / "a.jpg", "MPO", save_all=True, append_images=[photograph])
    Image.new("L", (3, 3)).save(tmp_path / "other.gif")
    data = load_folder(tmp_path)
    levels = torch.cat([data.split(s) for s in SPLITS])
    assert len(levels) == 11 and levels.shape[2:] == (16, 16)
    assert (levels.int() - 100).abs().max() <= 2


@pytest.mark.parametrize(
    "mode, channels", [("1", 1), ("L", 1), ("LA", 1), ("P", 3), ("RGB", 3), ("RGBA", 3)]
)
def test_folder_modes(tmp_path, mode, channels):
    """One file of another mode among grey ones: a colour file makes all of them RGB."""
    fill(tmp_path, 9)
    image = noise_image((6, 5), 3, seed=50).convert("RGB" if channels == 3 else "L")
    image = image.convert(mode)  # to LA and RGBA: opaque
    image.save(tmp_path / "zz.png")
    data = load_folder(tmp_path)
    assert data.image_shape == (channels, 5, 6)
    expected = np.asarray(image.convert("RGB" if channels == 3 else "L")).reshape(5, 6, channels)
    everything = torch.cat([data.split(s) for s in SPLITS])
    is_it = (everything == torch.from_numpy(expected.copy()).permute(2, 0, 1)).flatten(1).all(1)
    assert is_it.sum() == 1
    if channels == 3:
        assert (everything[~is_it] == everything[~is_it][:, :1]).all(), "grey files stay grey"


def test_folder_applies_the_orientation_tag(tmp_path):
    fill(tmp_path, 9, size=(4, 4))
    image = noise_image((4, 4), 1, seed=60)
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned clockwise
    image.save(tmp_path / "zz.png", exif=exif)
    everything = torch.cat([load_folder(tmp_path).split(s) for s in SPLITS])
    turned = torch.from_numpy(np.rot90(np.asarray(image), -1).copy())
    assert (everything == turned).flatten(1).all(1).sum() == 1


def test_folder_of_split_folders(tmp_path):
    for split, number in zip(SPLITS, (7, 2, 3), strict=True):
        fill(tmp_path / split / "some class", number)
    data = load_folder(tmp_path)
    assert [len(data.split(s)) for s in SPLITS] == [7, 2, 3]
    for split in SPLITS:
        for i, levels in enumerate(data.split(split)):
            assert np.array_equal(levels[0], noise_image((6, 5), 1, seed=i))
    fill(tmp_path / "else", 1)
    message = error_of(load_folder, tmp_path)
    assert "000.png" in message and "validation/" in message


def test_folder_of_incomplete_splits(tmp_path):
    fill(tmp_path / "train", 20)
    assert [len(load_folder(tmp_path).split(s)) for s in SPLITS] == [16, 2, 2]
    fill(tmp_path / "test", 2)
    assert "no validation/" in error_of(load_folder, tmp_path)
    (tmp_path / "validation").mkdir()
    message = error_of(load_folder, tmp_path)
    assert str(tmp_path / "validation") in message and "no images" in message


def test_folder_of_mixed_sizes_needs_a_resolution(tmp_path):
    fill(tmp_path, 9, size=(12, 8))
    # sides of 0, beyond the reach of the filter (10 pixels) from the centre square
    pixels = np.zeros((40, 80), np.uint8)
    pixels[:, 10:70] = 200
    Image.fromarray(pixels).save(tmp_path / "wide.png")
    message = error_of(load_folder, tmp_path)
    for part in ("000.png", "12x8", "wide.png", "80x40", "--resolution N"):
        assert part in message
    data = load_folder(tmp_path, resolution=4)
    assert data.image_shape == (1, 4, 4)
    everything = torch.cat([data.split(s) for s in SPLITS])
    assert (everything == 200).flatten(1).all(1).sum() == 1
    assert "resolution is 0" in error_of(load_folder, tmp_path, resolution=0)


def test_folder_resize_is_antialiased_and_keeps_the_mean(tmp_path):
    """A checkerboard of single pixels becomes even grey; picking pixels leaves 0 or 255."""
    board = (np.indices((64, 64)).sum(0) % 2 * 255).astype(np.uint8)
    for i in range(10):
        Image.fromarray(board).save(tmp_path / f"{i}.png")
    inner = load_folder(tmp_path, resolution=8).train[..., 1:-1, 1:-1].int()
    assert (inner - 127).abs().max() <= 2


def test_missing_empty_and_small_folders(tmp_path):
    assert "no folder" in error_of(load_folder, tmp_path / "absent")
    message = error_of(load_folder, tmp_path)
    assert "holds 0 images" in message and "png" in message and str(tmp_path) in message
    fill(tmp_path, 9)
    assert "holds 9 images, fewer than 10" in error_of(load_folder, tmp_path)
    assert "no folder" in error_of(load_folder, tmp_path / "000.png")


def png_of_16_bit_colour():
    def chunk(kind, body):
        return (
            struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        )

    header = struct.pack(">IIBBBBB", 6, 5, 16, 2, 0, 0, 0)
    body = chunk(b"IDAT", zlib.compress((b"\0" + bytes(6 * 6)) * 5))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + body + chunk(b"IEND", b"")


def encoded(image, kind="png", **options):
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


GREY = Image.new("L", (6, 5), 7)
BAD_FILES = {
    "no image": (b"text", "cannot read"),
    "empty": (b"", "cannot read"),
    "truncated": (encoded(noise_image((60, 50), 1, 0))[:-500], "cannot read"),
    "gif in disguise": (encoded(GREY, "gif"), "cannot read"),
    "16-bit grey": (encoded(Image.fromarray(np.zeros((5, 6), np.uint16))), "8 bits"),
    "16-bit colour": (png_of_16_bit_colour(), "8 bits"),
    "float": (encoded(Image.new("F", (6, 5)), "tiff"), "8 bits"),
    "cmyk": (encoded(Image.new("CMYK", (6, 5)), "jpeg"), "CMYK"),
    "alpha": (encoded(Image.new("RGBA", (6, 5), (1, 2, 3, 254))), "transparent"),
    "grey alpha": (encoded(Image.new("LA", (6, 5), (1, 0))), "transparent"),
    "palette alpha": (encoded(GREY.convert("P"), transparency=7), "transparent"),
    "grey key": (encoded(GREY, transparency=7), "transparent"),
    "frames": (
        encoded(GREY, "tiff", save_all=True, append_images=[GREY]),
        "several frames",
    ),
}


@pytest.mark.parametrize("content, reason", BAD_FILES.values(), ids=BAD_FILES.keys())
def test_folder_names_the_file_it_cannot_use(tmp_path, content, reason):
    (fill(tmp_path) / "bad one.png").write_bytes(content)
    message = error_of(load_folder, tmp_path)
    assert "bad one.png" in message and reason in message


def test_folder_accepts_an_opaque_transparency_key(tmp_path):
    (fill(tmp_path) / "key.png").write_bytes(encoded(GREY, transparency=9))
    assert load_folder(tmp_path).image_shape == (1, 5, 6)


def test_folder_names_a_dangling_link(tmp_path):
    (fill(tmp_path) / "link.png").symlink_to(tmp_path / "gone.png")
    assert "link.png" in error_of(load_folder, tmp_path)


@pytest.mark.parametrize("limit", [10, 20], ids=["error of Pillow", "warning of Pillow"])
def test_folder_refuses_a_decompression_bomb(tmp_path, monkeypatch, limit):
    fill(tmp_path)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", limit)  # the images have 30 pixels
    message = error_of(load_folder, tmp_path)
    assert "000.png" in message and f"more than {limit} pixels" in message


# --------------------------------------------------------------------------------- level maps


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("num_levels", [2, 3, 10, 17, 100, 255, 256])
def test_level_maps_invert_each_other(num_levels, dtype):
    """Also for the numbers next to the edges of a cell, where (k + u) / L rounds across."""
    eps = torch.finfo(dtype).eps
    edge = torch.arange(1, 20, dtype=dtype) * eps / 2
    inside = torch.rand(200, dtype=dtype, generator=torch.Generator().manual_seed(0))
    noise = torch.cat([torch.zeros(1, dtype=dtype), edge, inside, 1 - edge])
    levels = torch.arange(num_levels, dtype=torch.uint8)[:, None].expand(-1, len(noise))
    noise = noise.expand(num_levels, -1)
    x = dequantise(levels, num_levels, noise)
    assert x.dtype == dtype and x.min() == 0 and x.max() < 1
    exact = (levels.double() + noise.double()) / num_levels
    assert (x.double() - exact).abs().max() <= 2 * eps
    shown = quantise(x, num_levels)
    assert shown.dtype == dtype and shown.min() == 0 and shown.max() == 1
    back = to_levels(shown, num_levels)
    assert back.dtype == torch.uint8 and torch.equal(back, levels)
    assert torch.equal(dequantise(levels.long(), num_levels, noise), x)


def test_quantise_saturates_by_definition():
    x = torch.tensor([-5.0, -1e-9, 0.0, 0.24, 0.25, 0.99, 1.0, 7.0], dtype=torch.float64)
    expected = torch.tensor([0, 0, 0, 0, 1, 3, 3, 3], dtype=torch.float64) / 3
    assert torch.equal(quantise(x, 4), expected)
    assert torch.equal(quantise(x.bfloat16(), 4), expected.float())
    for wrong in (torch.tensor([1, 2]), torch.tensor([torch.nan]), torch.tensor([torch.inf])):
        with pytest.raises(ValueError, match="finite floats"):
            quantise(wrong, 4)
    with pytest.raises(ValueError, match="between 2 and 256"):
        quantise(x, 1)


def test_dequantise_refuses_what_is_out_of_range():
    levels, noise = torch.tensor([[0, 255]], dtype=torch.uint8), torch.zeros(1, 2)
    assert dequantise(levels, 256, noise).tolist() == [[0, 255 / 256]]
    for k, num_levels, u, match in (
        (levels, 17, noise, r"0\.\.16"),
        (levels.int() - 1, 256, noise, r"0\.\.255"),
        (levels.float(), 256, noise, "integers"),
        (levels, 256, noise + 1, "noise"),
        (levels, 256, noise - 0.1, "noise"),
        (levels, 256, noise * torch.nan, "noise"),
        (levels, 256, noise[0], "noise"),
        (levels, 256, noise.half(), "noise"),
    ):
        with pytest.raises(ValueError, match=match):
            dequantise(k, num_levels, u)
    assert dequantise(levels[:0], 17, noise[:0]).shape == (0, 2)


def test_to_levels_takes_the_grid_and_levels_only():
    grid = torch.arange(17, dtype=torch.float64) / 16
    off = 0.9e-3 / 16
    assert torch.equal(to_levels(grid + off, 17), torch.arange(17, dtype=torch.uint8))
    assert torch.equal(to_levels(grid - off, 17), torch.arange(17, dtype=torch.uint8))
    levels = torch.tensor([0, 16], dtype=torch.uint8)
    assert torch.equal(to_levels(levels, 17), levels)
    full = torch.tensor([0, 255], dtype=torch.uint8)
    assert torch.equal(to_levels(full, 256), full)
    for images, words in (
        (grid + 1.2e-3 / 16, ("off the grid", "17", "quantise")),
        (grid * 16, ("out of the range", "17", "quantise")),
        (grid - 1 / 16, ("out of the range", "-0.0625")),
        (grid * torch.nan, ("finite",)),
        (grid / 0, ("finite",)),
        (levels + 1, ("level 17", "end at 16")),
        (levels.int(), ("torch.int32", "uint8")),
    ):
        message = error_of(to_levels, images, 17)
        assert all(word in message for word in words), message

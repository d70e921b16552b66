"""A user's paired data: both readers and the sentence behind each mistake."""

import math
import pickle

import numpy as np
import pytest
from conftest import error_of

from ebm_app.tabular.columns import check_pair, read_csv_pair, read_pair
from ebm_app.tabular.npy import read_npy


def random(seed=0):
    return np.random.default_rng(seed)


def save(path, values, **options):
    np.save(path, values, **options)
    return path


def write(path, text):
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


NUMBERS = random(7).standard_normal((12, 3))


# .npy files


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", ">f8", "g", "i1", "u8", "i8", "?"])
def test_npy_of_real_numbers(tmp_path, dtype):
    values = (100 * NUMBERS).astype(dtype)
    read = read_npy(save(tmp_path / "x.npy", values))
    assert read.dtype == np.float64 and np.array_equal(read, values.astype(np.float64))


def test_npy_pair_and_its_shapes(tmp_path):
    x_path = save(tmp_path / "x.npy", NUMBERS[:, 0])
    y_path = save(tmp_path / "y.npy", np.asfortranarray(NUMBERS[:, 1:]))
    x, y = read_pair(x_path, str(y_path))
    assert x.shape == (12, 1) and np.array_equal(x[:, 0], NUMBERS[:, 0])
    assert np.array_equal(y, NUMBERS[:, 1:])
    for version in ((1, 0), (2, 0), (3, 0)):
        with (tmp_path / "v.npy").open("wb") as file:
            np.lib.format.write_array(file, NUMBERS, version=version)
        assert np.array_equal(read_npy(tmp_path / "v.npy"), NUMBERS)


BAD_ARRAYS = {
    "objects": (np.array([[1.0, None]] * 12, object), "Python objects"),
    "text": (np.array(["a"] * 12), "text"),
    "bytes": (np.array([b"a"] * 12), "text"),
    "complex": (NUMBERS * 1j, "complex"),
    "dates": (np.array(["2020-01-01"] * 12, "M8[D]"), "dates"),
    "spans": (np.arange(12).astype("m8[s]"), "time spans"),
    "records": (np.zeros(12, [("a", "f8"), ("b", "O")]), "records"),
    "three dimensions": (np.zeros((12, 3, 1)), "shape (12, 3, 1)"),
    "a number": (np.float64(3), "shape ()"),
    "no columns": (np.zeros((12, 0)), "shape (12, 0)"),
}


@pytest.mark.parametrize("values, reason", BAD_ARRAYS.values(), ids=BAD_ARRAYS.keys())
def test_npy_of_anything_else_is_refused(tmp_path, values, reason):
    path = save(tmp_path / "bad.npy", values)
    message = error_of(read_npy, path)
    assert str(path) in message and reason in message


class Bomb:
    """Writes a file once it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


@pytest.mark.parametrize("form", ["array", "plain"])
def test_no_pickle_is_opened(tmp_path, form):
    bomb, path = Bomb(tmp_path / "exploded"), tmp_path / "bad.npy"
    if form == "array":
        save(path, np.array([bomb] * 12, object))
    else:
        write(path, pickle.dumps(bomb))
    error_of(read_npy, path)
    assert not bomb.path.exists()
    np.load(path, allow_pickle=True)  # the bomb is a real one
    assert bomb.path.exists()


def npy_bytes(tmp_path):
    return save(tmp_path / "good.npy", NUMBERS).read_bytes()


def with_header(text):
    header = text.encode()
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + bytes(96)


BAD_FILES = {
    "text": b"a,b\n1,2\n",
    "cut in the header": with_header("{'descr': '<f8'}")[:-110],
    "header of no dictionary": with_header("("),
    "header with other keys": with_header("{'a': 1}"),
    "header that cannot be hashed": with_header("{[]: 1}"),
    "shape of truth values": with_header("{'descr':'<f8','fortran_order':False,'shape':(True,)}"),
    "dtype of nothing": with_header("{'descr':((),()),'fortran_order':False,'shape':(6,)}"),
    # 8 TB: refused by the size of the file, before memory is taken
    "shape of terabytes": with_header(
        "{'descr':'<f8','fortran_order':False,'shape':(1000000000000,)}"
    ),
}


@pytest.mark.parametrize("content", BAD_FILES.values(), ids=BAD_FILES.keys())
def test_npy_that_is_damaged(tmp_path, content):
    path = write(tmp_path / "bad.npy", content)
    message = error_of(read_npy, path)
    assert str(path) in message and "numpy.save" in message


def test_npy_that_is_cut_or_zipped(tmp_path):
    good = npy_bytes(tmp_path)
    for length in (4, 40, len(good) - 1):
        assert "numpy.save" in error_of(read_npy, write(tmp_path / "cut.npy", good[:length]))
    for content in (good[:-1], BAD_FILES["shape of terabytes"]):
        assert "ends early" in error_of(read_npy, write(tmp_path / "cut.npy", content))
    np.savez(tmp_path / "x.npz", NUMBERS)
    assert "numpy.save" in error_of(read_npy, tmp_path / "x.npz")


@pytest.mark.parametrize("read", [read_npy, lambda path: read_csv_pair(path, ["a"], ["b"])])
def test_missing_and_empty_files(tmp_path, read):
    for path in (tmp_path / "absent", tmp_path):
        message = error_of(read, path)
        assert "no file" in message and str(path) in message
    assert "is empty" in error_of(read, write(tmp_path / "empty", ""))


def test_a_file_that_may_not_be_read(tmp_path, monkeypatch):
    path = save(tmp_path / "x.npy", NUMBERS)

    def refuse(*args, **kwargs):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(type(path), "open", refuse)
    assert "Permission denied" in error_of(read_npy, path)
    assert "Permission denied" in error_of(read_csv_pair, path, ["a"], ["b"])


# CSV files


def csv_text(values, names="abc", end="\n"):
    rows = [",".join(names), *(",".join(repr(float(v)) for v in row) for row in values)]
    return end.join(rows) + end


def test_csv_keeps_the_order_of_the_names(tmp_path):
    x, y = read_csv_pair(write(tmp_path / "d.csv", csv_text(NUMBERS)), ["c", "a"], ["b"])
    assert x.columns == ["c", "a"] and y.columns == ["b"] and (2 * x).columns is None
    assert x.dtype == y.dtype == np.float64
    assert np.array_equal(x, NUMBERS[:, [2, 0]]) and np.array_equal(y, NUMBERS[:, [1]])


def test_csv_as_other_programs_write_it(tmp_path):
    """A byte order mark, line ends of Windows, blank lines, spaces, quotes, and text elsewhere."""
    rows = [f'"{i}.0", {i}e-1 , "ab\nc, d"' for i in range(12)]
    text = "\r\n\r\n".join(['\ufeff"a", b ,note', *rows, ""])
    x, y = read_csv_pair(write(tmp_path / "d.csv", text), ["a"], ["b"])
    assert np.array_equal(x[:, 0], np.arange(12))
    assert np.array_equal(y[:, 0], [float(f"{i}e-1") for i in range(12)])


BAD_CSVS = {
    "unknown": (csv_text(NUMBERS, "xbc"), ["no column 'a'", "choose from x, b, c"]),
    "semicolons": (csv_text(NUMBERS).replace(",", ";"), ["no column 'a'", "a;b;c"]),
    "repeated": (csv_text(NUMBERS, "aba"), ["several columns 'a'"]),
    "only blank lines": ("\n\n", ["no column 'a'"]),
    "only a header": ("a,b\n", ["there are 0 rows"]),
    "short row": ("a,b,c\n1,2,3\n4,5\n", ["line 3", "2 cells", "3"]),
    "long row": ("a,b\n\n1,2\n1,2,3\n", ["line 4", "3 cells", "has 2", "as many"]),
    "word": ("a,b\n1,2\n3,four\n", ["line 3", "'four'", "column 'b'"]),
    "empty cell": ("a,b\n1,2\n,4\n", ["line 3", "''", "column 'a'"]),
    "lines in a cell": ('a,b\n1,"2\n3"\n', ["line 3", r"'2\n3'", "column 'b'"]),
    "underscore": ("a,b\n1,2_000\n", ["line 2", "'2_000'", "column 'b'"]),
    "open quote": ('a,b\n1,"2\n', ["comma-separated"]),
    "not UTF-8": ("a,b\n1,é\n".encode("latin-1"), ["comma-separated", "utf-8"]),
    "NaN": (csv_text(NUMBERS) + "nan,1,1\n", ["1 of 26", "row 13", "of 'a'"]),
    "constant": ("a,b\n" + 10 * "1,1\n", ["constant", "'a', 'b'"]),
    "equal": ("a,b\n" + "".join(f"{i},{i}\n" for i in range(10)), ["'a' and 'b'", "no bound"]),
}


@pytest.mark.parametrize("text, parts", BAD_CSVS.values(), ids=BAD_CSVS.keys())
def test_csv_mistakes(tmp_path, text, parts):
    message = error_of(read_csv_pair, write(tmp_path / "d.csv", text), ["a"], ["b"])
    for part in parts:
        assert part in message


@pytest.mark.parametrize(
    "x_columns, y_columns, reason",
    [
        ([], ["b"], "no column is given for x"),
        (["a"], [], "no column is given for y"),
        (["a", "c", "a"], ["b"], "'a' is given twice for x"),
        (["a"], ["b", "b"], "'b' is given twice for y"),
        (["a", "b"], ["c", "b"], "'b' is given for x and for y"),
    ],
)
def test_csv_groups(tmp_path, x_columns, y_columns, reason):
    path = write(tmp_path / "d.csv", csv_text(NUMBERS))
    assert reason in error_of(read_csv_pair, path, x_columns, y_columns)


# the values


def test_unequal_and_few_rows(tmp_path):
    message = error_of(check_pair, NUMBERS, NUMBERS[:-1, :1])
    assert "x has 12 rows" in message and "y has 11" in message
    check_pair(NUMBERS[:10, :1], NUMBERS[:10, 1:])
    message = error_of(check_pair, NUMBERS[:9, :1], NUMBERS[:9, 1:])
    assert "9 rows, fewer than 10" in message
    check_pair(NUMBERS[:, :1], NUMBERS[:, 1:], min_rows=12)
    assert "fewer than 13" in error_of(check_pair, NUMBERS[:, :1], NUMBERS[:, 1:], min_rows=13)
    assert "0 rows" in error_of(check_pair, NUMBERS[:0], NUMBERS[:0], min_rows=0)
    paths = [save(tmp_path / f"{i}.npy", NUMBERS[:, i]) for i in range(2)]
    assert "fewer than 13" in error_of(read_pair, *paths, min_rows=13)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_values_that_are_not_finite(value):
    x, y = NUMBERS[:, :1].copy(), NUMBERS[:, 1:].copy()
    y[[3, 9, 9], [1, 0, 1]] = value
    message = error_of(check_pair, x, y)
    assert "3 of 36 values" in message and "row 4" in message and "column 2 of y" in message
    assert "of q: " in error_of(check_pair, x, y, names=["o", "p", "q"])


def test_constant_columns_are_named():
    x, y = NUMBERS[:, :2].copy(), NUMBERS[:, 2:].copy()
    x[:, 1], y[:, 0] = 0.1, -3
    message = error_of(check_pair, x, y)
    assert "column 2 of x, column 1 of y" in message
    x[5, 1], y[0, 0] = 0.2, 0
    check_pair(x, y)


def test_one_column_on_both_sides():
    message = error_of(check_pair, NUMBERS[:, :2], NUMBERS[:, 1:])
    assert "column 2 of x and column 1 of y" in message and "no bound" in message
    check_pair(NUMBERS[:, [0, 0]], NUMBERS[:, 1:])  # one column twice in x adds nothing, finite

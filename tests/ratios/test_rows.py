"""Rows of a user: readers of files, conversion to columns, and folds."""

import pickle

import numpy as np
import pytest
import torch
from conftest import error_of
from exact import generator

from ebm_app.ratios.rows import Columns, assign_folds, read_csv, read_rows

NUMBERS = np.random.default_rng(7).standard_normal((12, 3))


def save(path, values, **options):
    np.save(path, values, **options)
    return path


def write(path, text):
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


# .npy files


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", ">f8", "g", "i1", "u8", "i8", "?"])
def test_npy_of_real_numbers(tmp_path, dtype):
    values = (100 * NUMBERS).astype(dtype)
    read = read_rows(save(tmp_path / "x.npy", np.asfortranarray(values)))
    assert type(read) is np.ndarray and read.dtype == np.float64
    assert np.array_equal(read, values.astype(np.float64))
    assert read_rows(save(tmp_path / "x.npy", values[:, 0])).shape == (12, 1)


BAD_ARRAYS = {
    "objects": (np.array([[1.0, None]] * 12, object), "Python objects"),
    "text": (np.array(["a"] * 12), "type <U1"),
    "complex": (NUMBERS * 1j, "complex"),
    "three dimensions": (np.zeros((12, 3, 1)), "shape (12, 3, 1)"),
    "a number": (np.float64(3), "shape ()"),
}


@pytest.mark.parametrize("values, reason", BAD_ARRAYS.values(), ids=BAD_ARRAYS.keys())
def test_npy_without_real_numbers_raises(tmp_path, values, reason):
    path = save(tmp_path / "bad.npy", values)
    message = error_of(read_rows, path)
    assert str(path) in message and reason in message


class Bomb:
    """Writes a file once it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


def test_no_file_is_unpickled(tmp_path):
    bomb = Bomb(tmp_path / "exploded")
    array = save(tmp_path / "array.npy", np.array([bomb] * 12, object))
    for path in (array, write(tmp_path / "plain.npy", pickle.dumps(bomb))):
        error_of(read_rows, path)
    assert not bomb.path.exists()
    np.load(array, allow_pickle=True)  # the bomb is a real one
    assert bomb.path.exists()


BAD_FILES = {
    "empty": b"",
    "text": b"a,b\n1,2\n",
    "pickled": pickle.dumps([1.0]),
    # 8 TB: refused by the size of the file, before memory is taken
    "shape of terabytes": b"\x93NUMPY\x01\x00\x47\x00"
    b"{'descr':'<f8','fortran_order':False,'shape':(1000000000000,)}         " + bytes(96),
}


@pytest.mark.parametrize("content", BAD_FILES.values(), ids=BAD_FILES.keys())
def test_damaged_npy_raises(tmp_path, content):
    path = write(tmp_path / "bad.npy", content)
    message = error_of(read_rows, path)
    assert str(path) in message and "numpy.save" in message


@pytest.mark.parametrize("read", [read_rows, lambda path: read_csv(path, ["a"])])
def test_missing_files_and_folders_raise(tmp_path, read):
    for path in (tmp_path / "absent", tmp_path):
        assert str(path) in error_of(read, path)


# CSV files


def csv_text(values, names="abc"):
    rows = [",".join(names), *(",".join(repr(float(v)) for v in row) for row in values)]
    return "\n".join(rows) + "\n"


def test_csv_keeps_order_and_digits(tmp_path):
    x = read_rows(write(tmp_path / "d.CSV", csv_text(NUMBERS)), ["c", "a"])
    assert list(x.columns) == ["c", "a"] and np.array_equal(x, NUMBERS[:, [2, 0]])


def test_csv_of_other_programs(tmp_path):
    """A byte order mark, line ends of Windows, blank lines, spaces, quotes, and text elsewhere."""
    rows = [f'"{i}.0", {i}e-1 , "ab\nc, d"' for i in range(12)]
    text = "\r\n\r\n".join(['\ufeff"a", b ,note', *rows, ""])
    table = read_csv(write(tmp_path / "d.csv", text), ["a", "b"])
    assert np.array_equal(table["a"], np.arange(12))
    assert np.array_equal(table["b"], [float(f"{i}e-1") for i in range(12)])


BAD_CSVS = {
    "unknown": (csv_text(NUMBERS, "xbc"), ["no column 'a'", "Choose from x, b, c"]),
    "semicolons": (csv_text(NUMBERS).replace(",", ";"), ["no column 'a'", "a;b;c"]),
    "blank lines": ("\n\n", ["comma-separated"]),
    "long row": ("a,b\n\n1,2\n1,2,3\n", ["comma-separated"]),
    "long rows": ("a,b\n1,2,3\n1,2,3\n", ["comma-separated"]),
    "twice": ("a,b,a\n1,2,3\n", ["'a' occurs twice"]),
    "word": ("a,b\n1,2\n3,four\n", ["Row 2", "'four'", "column 'b'"]),
    "underscore": ("a,b\n1,2_000\n", ["Row 1", "'2_000'", "column 'b'"]),
    "open quote": ('a,b\n1,"2\n', ["comma-separated"]),
    "not UTF-8": ("a,b\n1,é\n".encode("latin-1"), ["comma-separated", "utf-8"]),
}


@pytest.mark.parametrize("text, parts", BAD_CSVS.values(), ids=BAD_CSVS.keys())
def test_invalid_csv_raises(tmp_path, text, parts):
    message = error_of(read_csv, write(tmp_path / "d.csv", text), ["a", "b"])
    for part in parts:
        assert part in message


def test_missing_cells_are_nan(tmp_path):
    table = read_csv(write(tmp_path / "d.csv", "a,b\n1,2\n,4\n3\n"), ["a", "b"])
    assert np.isnan(table).to_numpy().tolist() == [[False] * 2, [True, False], [False, True]]


def test_csv_without_column_names_raises(tmp_path):
    path = write(tmp_path / "d.csv", csv_text(NUMBERS))
    assert "Name the columns" in error_of(read_rows, path)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_missing_values_are_counted_and_located(value):
    values = NUMBERS.copy()
    values[[3, 9], [1, 0]] = value
    message = error_of(Columns.of, values, "x1")
    assert "2 of 36 values of x1" in message and "row 4 " in message and "column 2" in message


def test_masked_values_raise_and_unmasked_arrays_are_rows():
    masked = np.ma.masked_greater(NUMBERS, 0.5)
    message = error_of(Columns.of, masked, "x0")
    assert f"{(NUMBERS > 0.5).sum()} values of x0 are masked" in message
    whole = np.ma.masked_array(NUMBERS, mask=False)
    assert np.array_equal(Columns.of(whole, "x0").values, NUMBERS)


def test_tensors_with_gradient_are_rows():
    rows = torch.tensor(NUMBERS).requires_grad_()
    assert np.array_equal(Columns.of(rows, "x").values, NUMBERS)
    assert "dense" in error_of(Columns.of, torch.tensor(NUMBERS).to_sparse(), "x")


def test_constant_columns_raise():
    values = NUMBERS.copy()
    values[:, 1] = 3.0
    assert "column 2 of x" in error_of(Columns.of(values, "x").check_range)


def test_copies_of_a_row_share_a_fold():
    columns = Columns.of(np.repeat(NUMBERS, [1, 2, 1, 1] * 3, axis=0), "x")
    fold, group = assign_folds(columns, 2, generator())
    assert len(group.unique()) == 12 and fold.bincount().tolist() in (
        [7, 8],
        [8, 7],
        [6, 9],
        [9, 6],
    )
    for number in group.unique():
        assert len(fold[group == number].unique()) == 1
    discrete = Columns.of(np.arange(40) % 4, "x")
    assert len(assign_folds(discrete, 2, generator())[1].unique()) == 40
    assert "12 distinct rows" in error_of(assign_folds, columns, 3, generator())

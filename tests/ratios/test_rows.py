"""Rows of a user: readers of files, conversion to columns, and folds."""

import gzip
import pickle

import numpy as np
import pandas as pd
import pytest
import torch
from conftest import error_of
from exact import generator

from ebm_app.ratios.rows import as_columns, assign_folds, check_columns, read_rows

NUMBERS = np.random.default_rng(7).standard_normal((12, 3))


def write(path, content):
    if isinstance(content, np.ndarray):
        np.save(path, content)
    else:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


@pytest.mark.parametrize("dtype", ["f2", ">f8", "g", "u8", "?"])
def test_npy_of_real_numbers(tmp_path, dtype):
    values = (100 * NUMBERS).astype(dtype)
    read = read_rows(write(tmp_path / "x.npy", np.asfortranarray(values))).to_numpy()
    assert read.dtype == np.float64 and np.array_equal(read, values.astype(np.float64))
    assert read_rows(write(tmp_path / "x.npy", values[:, 0])).shape == (12, 1)


TABLES = {
    "d.csv": b"# made by hand\na;b;note\n1,5;2;x\n-2;0,25;y\n",
    "d.tsv": b"a\tb\tnote\n1,5\t2\tx\n-2\t0,25\ty\n",
    "d.txt": b"a, b, note\n1.5, 2, x\n-2, 0.25, y\n",
    "d.csv.gz": gzip.compress(b"a,b,note\n1.5,2,x\n-2,0.25,y\n"),
}


@pytest.mark.parametrize("name", [*TABLES, "d.parquet"])
def test_tables_of_other_programs(tmp_path, name):
    expected = pd.DataFrame({"b": [2, 0.25], "a": [1.5, -2]})
    if name in TABLES:
        write(tmp_path / name, TABLES[name])
    else:
        pytest.importorskip("pyarrow")
        expected.assign(note=["x", "y"]).to_parquet(tmp_path / name)
    pd.testing.assert_frame_equal(read_rows(tmp_path / name, ["b", "a"]), expected)


def test_npz_needs_the_name_of_an_array(tmp_path):
    path = tmp_path / "d.npz"
    np.savez(path, train=NUMBERS, test=NUMBERS[:5])
    assert np.array_equal(read_rows(path, ["test"]), NUMBERS[:5])
    for names in ([], ["train", "test"], ["other"]):
        assert "arrays train, test" in error_of(read_rows, path, names)


def test_csv_of_other_programs(tmp_path):
    """A byte order mark, line ends of Windows, blank lines, spaces, quotes, and text elsewhere."""
    rows = [f'"{i}.0", {i}e-1 , "ab\nc, d"' for i in range(12)]
    text = "\r\n\r\n".join(['\ufeff"a", b ,note', *rows, ""])
    table = read_rows(write(tmp_path / "d.CSV", text), ["b", "a"])
    assert list(table.columns) == ["b", "a"]
    assert np.array_equal(table["a"], np.arange(12))
    assert np.array_equal(table["b"], [float(f"{i}e-1") for i in range(12)])
    assert "Column 'note'" in error_of(read_rows, tmp_path / "d.CSV")  # all columns


#: 8 TB: refused by the size of the file, before memory is taken
TERABYTES = b"{'descr':'<f8','fortran_order':False,'shape':(1000000000000,)}         " + bytes(96)
TERABYTES = b"\x93NUMPY\x01\x00\x47\x00" + TERABYTES
BAD_FILES = [
    (np.array([[1.0, None]] * 12, object), ["Python objects"]),
    (np.array(["a"] * 12), ["type"]),
    (NUMBERS * 1j, ["complex"]),
    (np.zeros((12, 3, 1)), ["2-d"]),
    (np.array(3.0), ["Expected rows"]),
    (np.zeros((0, 2)), ["shape (0, 2)"]),
    *((content, ["numpy.save"]) for content in (b"", b"a\n1\n", pickle.dumps([1.0]), TERABYTES)),
    ("x,b\n1,2\n", ["columns x, b", "got a"]),
    ("\n\n", ["text table"]),
    ("a,b\n1,2,3\n1,2,3\n", ["text table"]),
    ("a,b\n1,2\n3,four\n", ["Column 'b'", "type"]),
    ("a,b\n1,2\n,4\n3\n", ["2 of 6 values", "row 2", "column 'a'"]),
    ('a,b\n1,"2\n', ["text table"]),
    ("a,b\n1,é\n".encode("latin-1"), ["text table", "utf-8"]),
]


@pytest.mark.parametrize("content, parts", BAD_FILES)
def test_invalid_file_is_named(tmp_path, content, parts):
    is_table = "numpy.save" not in parts and not isinstance(content, np.ndarray)
    path = write(tmp_path / ("d.csv" if is_table else "bad.npy"), content)
    message = error_of(read_rows, path, ["a", "b"] if is_table else [])
    assert all(part in message for part in (str(path), *parts)) and "trust" not in message


def test_headers_are_names_and_not_numbers(tmp_path):
    for text, reason in (
        ("1.5,2\n2.5,3\n", "instead of the names"),  # the first row would be lost
        ("1,5;2\n2,5;3\n", "instead of the names"),
        ("1.5e+00 2.0e+00\n2.5e+00 3.0e+00\n", "instead of the names"),
        (",a\n0,1.5\n1,2.5\n", "no name"),  # the index of pandas would be a column
        ("a;b\n1;2\n2;3 %\n", "'3 %' in row 2"),
    ):
        assert reason in error_of(read_rows, write(tmp_path / "d.csv", text))
    # years and quoted separators are names
    assert [*read_rows(write(tmp_path / "a.csv", "2019,2020\n1,2\n"))] == ["2019", "2020"]
    assert [*read_rows(write(tmp_path / "b.csv", '"a, in m";b\n1,5;2\n'))] == ["a, in m", "b"]


def test_missing_masked_and_infinite_values_raise():
    values = NUMBERS.copy()
    values[[3, 9], [1, 0]] = np.nan, np.inf
    message = error_of(as_columns, values, "x1")
    assert "2 of 36 values of x1" in message and "row 4 " in message and "column '2'" in message
    masked = np.ma.masked_greater(NUMBERS, 0.5)
    message = error_of(as_columns, masked, "x0")
    assert f"{(NUMBERS > 0.5).sum()} values of x0 are masked" in message
    nullable = pd.DataFrame({"a": [1, None]}, dtype="Int64")
    assert "1 of 2 values of x" in error_of(as_columns, nullable, "x")
    assert "1 of 2 values of x are missing" in error_of(as_columns, [1.0, None], "x")


def test_arrays_and_records_become_columns_of_any_names():
    array = as_columns(torch.tensor(NUMBERS).requires_grad_(), "x")
    table = pd.DataFrame(NUMBERS, columns=list("abc"))
    assert np.array_equal(array, NUMBERS)
    records = np.array([(1, 2.5)], [("a", int), ("b", float)])
    assert as_columns(records, "x").to_numpy().tolist() == [[1, 2.5]]
    assert as_columns(torch.ones(2, dtype=torch.bfloat16), "x").shape == (2, 1)
    check_columns(array.columns, table.columns)
    for columns in (array.columns[:2], pd.Index(["a", "c", "b"])):
        assert "a, b, c" in error_of(check_columns, columns, table.columns)


@pytest.mark.parametrize("column", [3.0, 1e200 * NUMBERS[:, 1]], ids=["constant", "huge"])
def test_columns_without_a_variance_raise(column):
    values = NUMBERS.copy()
    values[:, 1] = column
    assert ": 2." in error_of(assign_folds, as_columns(values, "x"), "x", 3, generator())


def test_copies_of_a_row_share_a_fold():
    rows = as_columns(np.repeat(np.arange(18.0), [1, 2, 1] * 6), "x")
    fold, group = assign_folds(rows, "x", 3, generator())
    assert len(group.unique()) == 18 and sorted(fold.unique()) == [0, 1, 2]
    for number in group.unique():
        assert len(fold[group == number].unique()) == 1
    discrete = as_columns(np.arange(40) % 4, "x")
    assert len(assign_folds(discrete, "x", 3, generator())[1].unique()) == 40
    assert "18 distinct rows" in error_of(assign_folds, rows, "x", 4, generator())

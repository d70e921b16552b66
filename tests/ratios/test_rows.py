"""Rows of a user: files, conversion to columns, and folds."""

import gzip
import pickle

import numpy as np
import pandas as pd
import pytest
import torch
from conftest import error_of

from ebm_app.ratios.cross_fit import assign_folds
from ebm_app.ratios.rows import (
    as_rows,
    check_columns,
    check_variation,
    read_rows,
)

NUMBERS = np.random.default_rng(7).standard_normal((12, 3))


def folds(rows, num_folds=3):
    return assign_folds(rows, "x", num_folds, np.random.default_rng(0))


@pytest.mark.parametrize("dtype", [">f8", "?"])
def test_npy_arrays_of_real_numbers_are_read(tmp_path, dtype):
    values = (100 * NUMBERS).astype(dtype)
    np.save(tmp_path / "x.npy", np.asfortranarray(values))
    read = read_rows(tmp_path / "x.npy").to_numpy()
    assert read.dtype == np.float64 and np.array_equal(read, values.astype(np.float64))
    np.save(tmp_path / "x.npy", values[:, 0])
    assert read_rows(tmp_path / "x.npy").shape == (12, 1)


def test_columns_of_npy_arrays_are_selected(tmp_path):
    np.save(tmp_path / "x.npy", NUMBERS)
    chosen = read_rows(tmp_path / "x.npy", ["2", "0"]).to_numpy()
    assert np.array_equal(chosen, NUMBERS[:, [2, 0]])


TABLES = {
    "d.csv": b"a,b,note\n1.5,2,x\n-2,0.25,y\n",
    "d.tsv": b"a\tb\tnote\n1.5\t2\tx\n-2\t0.25\ty\n",
    "d.csv.gz": gzip.compress(b"a,b,note\n1.5,2,x\n-2,0.25,y\n"),
}


@pytest.mark.parametrize("name", [*TABLES, "d.parquet"])
def test_columns_of_tables_are_selected(tmp_path, name):
    expected = pd.DataFrame({"b": [2, 0.25], "a": [1.5, -2]})
    if name in TABLES:
        (tmp_path / name).write_bytes(TABLES[name])
    else:
        pytest.importorskip("pyarrow")
        expected.assign(note=["x", "y"]).to_parquet(tmp_path / name)
    pd.testing.assert_frame_equal(read_rows(tmp_path / name, ["b", "a"]), expected)
    reason = "'x' on line 2" if name in TABLES else "text"
    assert reason in error_of(read_rows, tmp_path / name)  # the text of all columns


BAD_FILES = [
    ("bad.npy", pickle.dumps([1.0]), "numpy.save"),
    ("d.csv", b"x,b\n1,2\n", "columns x, b"),
    ("d.csv", b",b\n1,2\n", "no name"),
    ("d.csv", b"a,b\n1,2\n,4\n", "line 3"),
    ("d.csv", b"a,b\n1,2\n\n3,4\n", "blank line"),
    ("d.csv", b"a,b\n9,1,2\n9,3,4\n", "line 2"),  # not an index
    ("d.csv", b"a;b\n1.000,5;2\n", "'1.000,5'"),
    ("d.csv", b"a,b\n1,nan\n", "'nan'"),
    ("d.csv", b"a,b,a\n1,2,3\n", "several columns"),
    ("d.csv", b"", "empty"),
    ("d.parquet", b"a,b\n", "Cannot read"),
]


@pytest.mark.parametrize(("name", "content", "reason"), BAD_FILES)
def test_invalid_file_is_named(tmp_path, name, content, reason):
    path = tmp_path / name
    path.write_bytes(content)
    columns = ["a", "b"] if name == "d.csv" and reason != "no name" else []
    message = error_of(read_rows, path, columns)
    assert str(path) in message and reason in message


def test_separator_blanks_and_decimal_commas_are_found(tmp_path):
    path, expected = tmp_path / "d.csv", pd.DataFrame({"a": [1.5, -2], "b": [2, 0.25]})
    lines = [" a", ' "note"', "b "], ["1.5", "x", " 2 "], ["-2", "y", "0.25"]
    for separator in ",;\t":
        path.write_text("\n".join(map(separator.join, lines)), encoding="utf-8-sig")
        pd.testing.assert_frame_equal(read_rows(path, ["a", "b"]), expected)
    expected.to_csv(path, index=False, sep=";", decimal=",")
    pd.testing.assert_frame_equal(read_rows(path), expected)


def test_tables_without_names_are_read_if_asked(tmp_path):
    path = tmp_path / "d.csv"
    path.write_text("0.5,2\n1.5,2.5\n")
    assert "--no_header" in error_of(read_rows, path)
    assert read_rows(path, header=None).to_numpy().tolist() == [[0.5, 2], [1.5, 2.5]]
    assert read_rows(path, ["1"], header=None).to_numpy().tolist() == [[2], [2.5]]


@pytest.mark.parametrize(
    "values",
    [
        np.where(NUMBERS > 1, np.inf, NUMBERS),
        np.ma.masked_greater(NUMBERS, 1),
        pd.DataFrame({"a": [1, None]}, dtype="Int64"),
        pd.DataFrame({"a": [1j, 2]}),
        pd.DataFrame({"a": pd.to_datetime(["2024-01-02", None])}),
        torch.ones(12, 2) + 0j,
        [["1"]],
        np.array([[b"1"]]),
        np.array([["1"]], object),
        pd.DataFrame({"a": ["1"]}),
        np.zeros((12, 3, 1)),
        np.zeros((0, 2)),
    ],
    ids=str,
)
def test_other_values_are_refused(values):
    assert "x0" in error_of(as_rows, values, "x0")


def test_arrays_and_tensors_become_columns():
    array, numbered = as_rows(torch.tensor(NUMBERS).requires_grad_(), "x")
    table, names = as_rows(pd.DataFrame(NUMBERS, columns=list("abc")), "x")
    assert np.array_equal(array, NUMBERS) and np.array_equal(table, NUMBERS)
    assert as_rows(torch.ones(2, dtype=torch.bfloat16), "x")[0].shape == (2, 1)
    check_columns(numbered, names)
    assert "1" in error_of(check_variation, array * [1, 0, 1], range(3), "x")


def test_folds_have_equal_sizes_and_at_least_five_rows():
    assert np.bincount(folds(NUMBERS.repeat(2, 0))).tolist() == [8, 8, 8]
    assert "12 rows" in error_of(folds, NUMBERS)

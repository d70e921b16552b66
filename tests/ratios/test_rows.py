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


@pytest.mark.parametrize("dtype", ["f2", ">f8", "u8", "?"])
def test_npy_arrays_of_real_numbers_are_read(tmp_path, dtype):
    values = (100 * NUMBERS).astype(dtype)
    np.save(tmp_path / "x.npy", np.asfortranarray(values))
    read = read_rows(tmp_path / "x.npy").to_numpy()
    assert read.dtype == np.float64 and np.array_equal(read, values.astype(np.float64))
    np.save(tmp_path / "x.npy", values[:, 0])
    assert read_rows(tmp_path / "x.npy").shape == (12, 1)


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
    reason = "'x' on line 2" if name in TABLES else "float"
    assert reason in error_of(read_rows, tmp_path / name)  # the text of all columns


BAD_FILES = [
    ("bad.npy", b"", "numpy.save"),
    ("bad.npy", pickle.dumps([1.0]), "numpy.save"),
    ("d.csv", b"x,b\n1,2\n", "columns x, b"),
    ("d.csv", b"a,b\n1,2\n,4\n", "'' on line 3"),
    ("d.csv", b"a,b\n1,2\n\n3,4\n", "blank line on line 3"),
    ("d.csv", b"a,b\n1,2\n3\n", "2 cells as on line 1, got 1 cells on line 3"),
    ("d.csv", b"a,b\n9,1,2\n9,3,4\n", "got 3 cells on line 2"),  # not an index
    ("d.csv", b"a,b\n2024-01-02,1\n,2\n", "'2024-01-02' on line 2"),
    ("d.csv", b"a;b\n1.000,5;2\n", "'1.000,5' on line 2"),
    ("d.csv", b"a\tb\n1,5\t2\n", "'1,5' on line 2"),
    ("d.csv", b"a,b\n1,nan\n", "'nan' on line 2"),
    ("d.csv", b"a,b\n1,1_000\n", "'1_000' on line 2"),
    ("d.csv", b"a,b,a\n1,2,3\n", "several columns 'a'"),
    ("d.csv", b"a,b\n", "got none"),
    ("d.csv", b"", "empty"),
    ("d.csv", b"\n\n", "Cannot read"),
    ("d.parquet", b"a,b\n", "Cannot read"),
]


@pytest.mark.parametrize(("name", "content", "reason"), BAD_FILES)
def test_invalid_file_is_named(tmp_path, name, content, reason):
    path = tmp_path / name
    path.write_bytes(content)
    message = error_of(read_rows, path, ["a", "b"] if name == "d.csv" else [])
    assert str(path) in message and reason in message


@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_separator_and_blanks_are_found(tmp_path, separator):
    lines = [" a", ' "note"', "b "], ["1.5", "x", " 2 "], ["-2", "y", "0.25"]
    path = tmp_path / "d.csv"
    path.write_text("\n".join(map(separator.join, lines)), encoding="utf-8-sig")
    expected = pd.DataFrame({"a": [1.5, -2], "b": [2, 0.25]})
    pd.testing.assert_frame_equal(read_rows(path, ["a", "b"]), expected)


def test_decimal_commas_are_read_with_semicolons(tmp_path):
    """With commas as separators, a correlation of 0.8 gave 0.006 nats."""
    path, table = tmp_path / "d.csv", pd.DataFrame(NUMBERS, columns=list("abc"))
    table.to_csv(path, index=False, sep=";", decimal=",")
    np.testing.assert_allclose(read_rows(path), table, rtol=1e-15)


def test_blank_cells_of_two_files_are_refused_with_their_lines(tmp_path):
    """Skipped lines shift the pairs: the information was 0.0018 nats instead of 0.511."""
    for name, line in (("x", 5), ("y", 9)):
        cells = [name, *map(str, NUMBERS[:, 0])]
        cells[line - 1] = ""
        (tmp_path / f"{name}.csv").write_text("\n".join(cells) + "\n")
        assert f"blank line on line {line}" in error_of(read_rows, tmp_path / f"{name}.csv")


def test_missing_dates_of_a_parquet_table_are_refused(tmp_path):
    pytest.importorskip("pyarrow")
    path, dates = tmp_path / "d.parquet", pd.to_datetime(["2024-01-02", None])
    pd.DataFrame({"a": [1.0, 2.0], "b": dates}).to_parquet(path)
    assert "dates" in error_of(read_rows, path)
    assert read_rows(path, ["a"])["a"].tolist() == [1, 2]


def test_columns_without_a_name_raise(tmp_path):
    path = tmp_path / "d.csv"
    path.write_text(",a\n0,1.5\n1,2.5\n")
    assert "no name" in error_of(read_rows, path)
    assert read_rows(path, ["a"]).shape == (2, 1)
    np.save(tmp_path / "x.npy", np.array([[1.0, None]], object))
    assert "Cannot read" in error_of(read_rows, tmp_path / "x.npy")  # a pickle


def test_tables_without_names_are_read_if_asked(tmp_path):
    path = tmp_path / "d.csv"
    path.write_text("0.5,2\n1.5,2.5\n")
    assert "--no_header" in error_of(read_rows, path)
    assert read_rows(path, header=None).to_numpy().tolist() == [[0.5, 2], [1.5, 2.5]]
    assert read_rows(path, ["1"], header=None).to_numpy().tolist() == [[2], [2.5]]
    path.write_text("2024,2025\n1.5,2.5\n")
    assert read_rows(path, ["2025"]).to_numpy().tolist() == [[2.5]]
    pd.DataFrame(NUMBERS).to_csv(path, index=False)  # names 0, 1, 2
    np.testing.assert_allclose(read_rows(path), NUMBERS)


@pytest.mark.parametrize(
    "values",
    [
        np.where(NUMBERS > 1, np.nan, NUMBERS),
        np.where(NUMBERS > 1, np.inf, NUMBERS),
        np.ma.masked_greater(NUMBERS, 1),
        pd.DataFrame({"a": [1, None]}, dtype="Int64"),
        [1.0, None],
        NUMBERS * 1j,
        pd.DataFrame({"a": [1j, 2]}),
        np.array(["2024-01-02", "NaT"], "datetime64[D]"),
        np.array([1, 2], "timedelta64[s]"),
        pd.DataFrame({"a": pd.to_datetime(["2024-01-02", None]).tz_localize("UTC"), "b": 1.0}),
        [["a"]],
        np.zeros((12, 3, 1)),
        np.array(3.0),
        np.zeros((0, 2)),
    ],
    ids=str,
)
def test_non_finite_values_raise(values):
    assert "finite numbers for x0" in error_of(as_rows, values, "x0")


def test_arrays_and_tensors_become_columns():
    array, numbered = as_rows(torch.tensor(NUMBERS).requires_grad_(), "x")
    table, names = as_rows(pd.DataFrame(NUMBERS, columns=list("abc")), "x")
    assert np.array_equal(array, NUMBERS) and np.array_equal(table, NUMBERS)
    assert as_rows(torch.ones(2, dtype=torch.bfloat16), "x")[0].shape == (2, 1)
    check_columns(numbered, names)
    for columns in (numbered[:2], ["a", "c", "b"]):
        assert "a, b, c" in error_of(check_columns, columns, names)


def test_constant_columns_raise():
    values = NUMBERS.copy()
    values[:, 1] = 3.0
    assert "columns of x: 1." in error_of(check_variation, values, range(3), "x")


def test_folds_have_equal_sizes_and_at_least_five_rows():
    assert np.bincount(folds(NUMBERS.repeat(2, 0))).tolist() == [8, 8, 8]
    assert "12 rows" in error_of(folds, NUMBERS)

"""log Z by the number of temperatures, from records of the command."""

import json

from conftest import call

from studies import log_z


def test_log_z_is_tabulated_by_temperatures(tmp_path, capsys):
    sides = ("", "forward_", "reverse_")
    names = [side + name for side in sides for name in ("log_z", "stderr")]
    complete = dict.fromkeys(names, 1.5)
    for k, figures in {10: complete, 20: complete, 30: None}.items():
        (tmp_path / str(k)).mkdir()
        record = {"settings": {"num_temperatures": k}, "figures": figures}
        (tmp_path / str(k) / "ais.json").write_text(json.dumps(record))
    out = ["--output_dir", tmp_path / "out"]
    assert call(log_z, tmp_path / "10", tmp_path / "20", *out) == 0
    assert "| 20 | 1.5 |" in capsys.readouterr().out
    assert (tmp_path / "out" / "log_z.png").stat().st_size > 1000
    assert call(log_z, tmp_path / "10", tmp_path / "30", *out) == 2
    assert "interrupted" in capsys.readouterr().err

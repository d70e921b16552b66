"""The benchmark of anomaly detection."""


def test_benchmark_ranks_unusual_images(script, tmp_path, capsys):
    main = script("evaluate/anomaly.py").main
    metrics = main(["digits", "--limit", "12", "--output_dir", str(tmp_path), "--seed", "3"])
    assert metrics["rows"]["shuffled"]["detector"] > 0.9
    assert set(metrics["false_alarms"]) == {"0.01", "0.05", "0.1"}
    assert "isolation forest" in capsys.readouterr().out
    assert (tmp_path / "anomaly.json").is_file() and (tmp_path / "anomaly.png").is_file()

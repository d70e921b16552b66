"""The benchmark of anomaly detection."""


def test_benchmark_ranks_unusual_images(script, tmp_path, capsys):
    main = script("evaluate/anomaly.py").main
    flags = "--limit 12 --num_unusual 12 --seed 3 --output_dir".split()
    metrics = main(["digits", *flags, str(tmp_path)])
    assert metrics["rows"]["shuffled"]["detector"] > 0.9
    assert set(metrics["false_alarms"]) == {"0.01", "0.05", "0.1"}
    assert "isolation forest" in capsys.readouterr().out
    assert (tmp_path / "anomaly.json").is_file() and (tmp_path / "anomaly.png").is_file()

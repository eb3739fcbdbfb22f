import os
import subprocess
import sys
import textwrap

import joblib
import pandas as pd
import pytest

from lib.sweeps import sweep

POINTS = [(a, b) for a in ("x", "y") for b in (1, 2, 3)]
CALLS: list[tuple] = []


def compute(a, b):
    CALLS.append((a, b))
    return {"value": b / 3, "kind": a.upper()}


def test_rows_are_those_of_the_points_in_order():
    frame = sweep(("a", "b"), reversed(POINTS), compute)
    assert list(zip(frame["a"], frame["b"], strict=True)) == POINTS
    assert frame["kind"].tolist() == ["X"] * 3 + ["Y"] * 3


def test_an_interrupted_sweep_ends_in_the_same_file_and_repeats_nothing(tmp_path):
    whole, resumed = tmp_path / "whole.csv", tmp_path / "resumed.csv"
    sweep(("a", "b"), POINTS, compute, path=whole)

    def fails_at_y2(a, b):
        if (a, b) == ("y", 2):
            raise KeyboardInterrupt
        return compute(a, b)

    with pytest.raises(KeyboardInterrupt):
        sweep(("a", "b"), POINTS, fails_at_y2, path=resumed)
    assert len(pd.read_csv(resumed)) == 4
    CALLS.clear()
    frame = sweep(("a", "b"), POINTS, compute, path=resumed)
    assert CALLS == [("y", 2), ("y", 3)]
    assert resumed.read_bytes() == whole.read_bytes()
    CALLS.clear()
    pd.testing.assert_frame_equal(frame, sweep(("a", "b"), POINTS, compute, path=resumed))
    assert not CALLS
    assert len(sweep(("a", "b"), POINTS[:2], compute, path=resumed)) == 2
    assert resumed.read_bytes() == whole.read_bytes()


def test_a_killed_sweep_leaves_a_complete_file(tmp_path):
    """The process dies in the middle of writing; what was there before is still there."""
    script = tmp_path / "killed.py"
    script.write_text(
        textwrap.dedent(
            """
            import os, sys
            from pathlib import Path
            import pandas as pd
            from lib.sweeps import sweep

            write, written = pd.DataFrame.to_csv, []

            def dies(self, path, **kwargs):
                if len(written) == 3:
                    Path(path).write_text("a,b\\nhalf a li")
                    os._exit(9)
                written.append(path)
                return write(self, path, **kwargs)

            pd.DataFrame.to_csv = dies
            sweep(("a",), [(i,) for i in range(6)], lambda a: {"b": 2 * a}, path=Path(sys.argv[1]))
            """
        )
    )
    path = tmp_path / "data.csv"
    killed = subprocess.run([sys.executable, script, path], env=os.environ, check=False)
    assert killed.returncode == 9
    assert pd.read_csv(path)["b"].tolist() == [0, 2, 4]
    assert sweep(("a",), [(i,) for i in range(6)], lambda a: {"b": 2 * a}, path=path)[
        "b"
    ].tolist() == [0, 2, 4, 6, 8, 10]


def test_processes_give_the_same_file(tmp_path):
    one, two = tmp_path / "one.csv", tmp_path / "two.csv"
    sweep(("a", "b"), POINTS, compute, path=one)
    sweep(("a", "b"), POINTS, compute, path=two, jobs=2)
    assert one.read_bytes() == two.read_bytes()


def test_a_dask_cluster_gives_the_same_file(tmp_path):
    distributed = pytest.importorskip("distributed")
    one, two = tmp_path / "one.csv", tmp_path / "two.csv"
    sweep(("a", "b"), POINTS, compute, path=one)
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, processes=False, dashboard_address=None
        ) as cluster,
        distributed.Client(cluster),
        joblib.parallel_config(backend="dask"),
    ):
        sweep(("a", "b"), POINTS, compute, path=two, jobs=-1)
    assert one.read_bytes() == two.read_bytes()


def third(x, name):
    return {"value": x / 3, "count": 1112256 if x > 0 else float("nan")}


def test_keys_of_every_kind_come_back_as_they_were(tmp_path):
    """Floats that CSV could round, text that looks like a number or like nothing, no count."""
    path = tmp_path / "data.csv"
    points = [(1 / 3, "None"), (0.25, "1"), (0.0, "a"), (-1.5, "nan")]
    first = sweep(("x", "name"), points, third, path=path)
    again = sweep(("x", "name"), points, lambda *_: pytest.fail("computed twice"), path=path)
    assert first["x"].tolist() == again["x"].tolist() == sorted(x for x, _ in points)
    assert again["name"].tolist() == ["nan", "a", "1", "None"]
    assert again["count"].tolist()[2:] == [1112256, 1112256]
    assert "1112256\n" in path.read_text()
    before = path.read_text()
    sweep(("x", "name"), [(0.5, "new")], third, path=path)
    assert [line for line in path.read_text().splitlines() if not line.startswith("0.5,")] == (
        before.splitlines()
    )
    assert again["value"].tolist() == pytest.approx([x / 3 for x in first["x"]], rel=1e-5)


def test_arguments_are_checked(tmp_path):
    with pytest.raises(ValueError, match="points must be distinct, with the entries a, b"):
        sweep(("a", "b"), [("x", 1), ("x", 1)], compute)
    with pytest.raises(ValueError, match="points must be distinct"):
        sweep(("a", "b"), [("x",)], compute)
    other = tmp_path / "other.csv"
    other.write_text("c,d\n1,2\n")
    with pytest.raises(ValueError, match="must have the columns a, b"):
        sweep(("a", "b"), POINTS, compute, path=other)

"""Pages in Markdown."""

from dtsn.config import TrainConfig
from dtsn.reproduce.markdown import configuration, table


def test_tables_are_markdown():
    assert table(("a", "b"), [(1, "x"), (2.5, "–")]) == "| a | b |\n| --- | --- |\n| 1 | x |\n| 2.5 | – |"


def test_every_setting_is_in_the_table():
    text = configuration(TrainConfig())
    assert "| `solver.weights.cql` | 1.0 |" in text
    assert "| `batch_size` | 128 |" in text

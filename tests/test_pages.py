"""Pages as one HTML file: pictures inside, nothing executed."""

import base64
from html.parser import HTMLParser

from dtsn.config import TrainConfig
from dtsn.reproduce.markdown import configuration, write_html

PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


class Tags(HTMLParser):
    def __init__(self):
        super().__init__()
        self.found = []

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))


def test_pictures_are_inside_and_foreign_html_is_text(tmp_path):
    (tmp_path / "figures").mkdir()
    (tmp_path / "figures" / "a.png").write_bytes(PIXEL)
    (tmp_path / "a.md").write_text(
        "# First\n\n| a | b |\n| --- | --- |\n| 1<br>2 | <script>alert(1)</script> |\n\n![a](figures/a.png)\n"
    )
    (tmp_path / "b.md").write_text("# Second\n\n![out](../../etc/hostname)\n")
    page = write_html(tmp_path / "out.html", [tmp_path / "a.md", tmp_path / "b.md"], "Title & more")
    text = page.read_text()
    tags = Tags()
    tags.feed(text)
    names = [tag for tag, _ in tags.found]
    assert "script" not in names
    assert names.count("table") == 1
    assert "br" in names
    pictures = [attrs["src"] for tag, attrs in tags.found if tag == "img"]
    assert pictures[0] == "data:image/png;base64," + base64.b64encode(PIXEL).decode()
    assert pictures[1] == "../../etc/hostname"  # not read: it is outside the page's folder
    assert "<title>Title &amp; more</title>" in text
    assert [attrs["href"] for tag, attrs in tags.found if tag == "a"] == ["#page-0", "#page-1"]


def test_every_setting_is_in_the_table():
    text = configuration(TrainConfig())
    assert "| `solver.weights.cql` | 1.0 |" in text
    assert "| `batch_size` | 128 |" in text

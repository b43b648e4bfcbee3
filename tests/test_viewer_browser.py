"""The viewer in a real browser, through the real command: what a visitor does, and a silent console."""

from __future__ import annotations

import contextlib
import re
import shutil
import signal
import subprocess
import sys
import xml.etree.ElementTree
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dtsn.inspection import read_search
from dtsn.pretrained import shipped
from viewer_server import easy_level, save_procgen_solver

sync_api = pytest.importorskip(
    "playwright.sync_api", reason="playwright is not installed: pip install 'dtsn[dev]'"
)

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
if CHROMIUM is None:
    pytest.skip("no chromium on this machine: apt-get install chromium", allow_module_level=True)

Page = Any
LEVEL = "level=2000014"
TREE = ".pane:not(.busy) .tree svg"


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    runs = tmp_path_factory.mktemp("runs")
    (runs / "bad").mkdir()
    (runs / "bad/state.json").write_text("{")
    for step in (10, 20):
        shutil.copytree(shipped("dtsn"), runs / f"study/checkpoints/step-{step}")
    with contextlib.suppress(pytest.skip.Exception):  # only the test of Procgen needs it
        save_procgen_solver(runs / "leaper/one")
        save_procgen_solver(runs / "leaper/two")
    command = [sys.executable, "-m", "dtsn", "view", "--port", "0", "--runs", str(runs)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process.stdout.readline().split()[-1]
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=60)[0] == "stopped\n"
    assert process.returncode == 0


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def page(browser: Any) -> Iterator[Page]:
    context = browser.new_context(viewport={"width": 1280, "height": 1000}, color_scheme="light")
    context.set_default_timeout(60_000)
    page, said = context.new_page(), []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    yield page
    context.close()
    assert said == []


def classes(page: Page, selector: str) -> list[set[str]]:
    return [set((node.get_attribute("class") or "").split()) for node in page.query_selector_all(selector)]


def test_search_can_be_scrubbed_and_changed(page: Page, address: str) -> None:
    with page.expect_response("**/api/search") as answered:
        page.goto(f"{address}#{LEVEL}")
    search = answered.value.json()["search"]
    page.wait_for_selector(TREE)
    shown = page.locator(".tree g.node")
    assert shown.count() == len(search["nodes"]) == 41
    best = set(search["best_path"])
    assert {n for n, words in enumerate(classes(page, ".tree g.node")) if "best" in words} == best

    for t in (9, 8):  # the keys scrub, and every panel follows
        page.keyboard.press("ArrowLeft")
        iteration = search["iterations"][t - 1]
        assert page.inner_text(".choice").startswith(f"Iteration {t} of 10 expands ")
        assert f"of {iteration['open_size']} open nodes" in page.inner_text(".choice")
        assert page.inner_text("#iteration-text") == f"iteration {t} / 10"
        q = [float(text.replace("−", "-")) for text in page.locator(".q-row .q").all_inner_texts()]
        assert q == pytest.approx(iteration["q"], abs=0.006)
        states = classes(page, ".tree g.node")
        assert [n for n, words in enumerate(states) if "current" in words] == [iteration["expanded"]]
        assert sum("expanded" in words for words in states) == t
        assert sum("future" in words for words in states) == 4 * (10 - t)
        assert f"t={t}" in page.url
    page.keyboard.press("Home")
    assert page.inner_text(".choice") == "Iteration 1 of 10 expands the root."
    page.keyboard.press("End")

    page.hover('.tree [data-id="2"] .disc')  # a node marks its cell
    cell = page.locator(".place.marked")
    assert cell.count() == 1
    assert "2" in (cell.get_attribute("data-ids") or "").split()
    assert "node 2 ·" in page.inner_text(".below")
    page.hover(f'.place[data-ids="{cell.get_attribute("data-ids")}"] .disc')  # and a cell its nodes
    marked = {n for n, words in enumerate(classes(page, ".tree g.node")) if "marked" in words}
    assert marked == {int(n) for n in (cell.get_attribute("data-ids") or "").split()}

    page.fill("#iterations", "25")
    page.locator("#iterations").press("Enter")
    page.wait_for_selector('.tree [data-id="100"]')
    page.select_option("#rule", "greedy")
    page.wait_for_selector("text=T = 25, greedy")
    page.reload()  # the address knows it all
    page.wait_for_selector("text=T = 25, greedy")
    assert shown.count() == 101


def test_agent_plays_to_the_goal_and_back(page: Page, address: str) -> None:
    page.goto(f"{address}#level={easy_level()}")
    page.wait_for_selector(TREE)
    page.keyboard.press("Enter")
    page.wait_for_selector("text=Step 1;")
    page.click("#back")
    page.wait_for_selector("text=Step 0;")
    page.keyboard.press(" ")
    page.wait_for_selector("text=Goal after")
    steps = int(page.inner_text(".status").split()[2])
    assert page.is_disabled("#forth")
    assert page.is_disabled("#play")
    page.reload()
    page.wait_for_selector(f"text=Goal after {steps} steps")
    page.keyboard.press("b")
    page.wait_for_selector(f"text=Step {steps - 1};")
    page.keyboard.press("r")
    page.wait_for_selector("text=Step 0;")
    page.click(".q-row >> nth=0")  # another action than the best one
    page.wait_for_selector("text=/Step 1;|Collision/")
    assert re.search(r"[#&]a=E\b", page.url)


def test_two_solvers_side_by_side(page: Page, address: str) -> None:
    page.goto(f"{address}#{LEVEL}")
    page.wait_for_selector(TREE)
    page.keyboard.press("c")
    page.wait_for_selector(".pane:nth-child(2):not(.busy) .tree svg")
    assert page.locator(".pane h2").all_inner_texts() == ["D-TSN", "Q-network"]
    assert [page.locator(f".pane:nth-child({n}) g.node").count() for n in (1, 2)] == [41, 5]
    first, second = (page.locator(f".pane:nth-child({n})").bounding_box() for n in (1, 2))
    assert first["y"] == second["y"]
    page.keyboard.press("Enter")
    page.wait_for_selector(".pane:nth-child(2) >> text=Step 1;")
    page.wait_for_selector(".pane:nth-child(1) >> text=Step 1;")
    assert re.search(r"&a=[ESWN]&b=[ESWN]$", page.url)
    page.keyboard.press("c")
    page.wait_for_selector("#panes:not(.two)")
    page.keyboard.press("Enter")
    page.wait_for_selector("text=Step 2;")
    page.keyboard.press("c")  # the second solver begins where the first is
    page.wait_for_selector(".pane:nth-child(2):not(.busy) >> text=Step 2;")
    assert re.search(r"a=([ESWN]{2})&b=\1$", page.url)
    page.keyboard.press("l")
    page.wait_for_selector(".pane:nth-child(2) >> text=Step 0;")
    assert "level=2000015" in page.url


def test_checkpoint_of_a_run_is_chosen(page: Page, address: str) -> None:
    page.goto(f"{address}#run=study&{LEVEL}")
    page.wait_for_selector(TREE)
    assert page.input_value("#step") == ""
    with page.expect_response("**/api/search") as answered:
        page.select_option("#step", "20")
    assert answered.value.ok
    assert answered.value.request.post_data_json["step"] == 20
    page.wait_for_selector(TREE)
    assert "step=20" in page.url
    page.reload()
    page.wait_for_selector(TREE)
    assert page.input_value("#step") == "20"


OWN = """
import gymnasium, numpy
from dtsn import NetworkConfig, Solver
from dtsn.viewer import show

class Corridor(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(0, 1, (6,), numpy.float32)
    action_space = gymnasium.spaces.Discrete(2)
    def reset(self, *, seed=None, options=None):
        self.place = seed % 5
        return self.observe(), {}
    def step(self, action):
        self.place = max(0, self.place + (1 if action else -1))
        return self.observe(), -1.0, self.place == 5, False, {}
    def observe(self):
        return numpy.eye(6, dtype=numpy.float32)[self.place]

def draw(env):
    picture = numpy.full((20, 60, 3), 255, numpy.uint8)
    picture[:, 10 * env.unwrapped.place:][:, :10] = (200, 0, 0)
    return picture

env = Corridor()
small = NetworkConfig(latent=8, hidden=8)
solvers = {
    name: Solver.create(kind, env.observation_space, env.action_space, network=small, seed=0)
    for name, kind in {"planner": "dtsn", "other": "qnet"}.items()
}
say = lambda address: print(address, flush=True)
show(solvers, env, render=draw, actions=["back", "on"], port=0, ready=say)
"""


def test_own_environment_by_its_render_function(page: Page) -> None:
    with subprocess.Popen([sys.executable, "-c", OWN], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            page.goto(f"{process.stdout.readline().strip()}#level=2&vs=other")
            for pane in (1, 2):  # either may be the first to be done
                page.wait_for_selector(f".pane:nth-child({pane}):not(.busy) .tree svg")
                page.wait_for_selector(f".pane:nth-child({pane}) .frame")
            red = """(image) => {
                const canvas = document.createElement("canvas");
                [canvas.width, canvas.height] = [image.naturalWidth, image.naturalHeight];
                const context = canvas.getContext("2d", { willReadFrequently: true });
                context.drawImage(image, 0, 0);
                const green = (n) => context.getImageData(10 * n + 5, 10, 1, 1).data[1];
                return [0, 1, 2, 3, 4, 5].filter((n) => green(n) === 0);
            }"""
            assert page.locator(".pane .frame").evaluate_all(f"(all) => all.map({red})") == [[2], [2]]
            page.locator('.pane:first-child .q-row:has-text("on")').click()
            page.wait_for_selector(".pane:first-child:not(.busy) >> text=Step 1; return -1.")
            assert page.locator(".pane:first-child .frame").evaluate(red) == [3]
            assert page.is_visible("#differ")
            options = page.query_selector_all("#run option")
            assert [option.get_attribute("value") for option in options] == ["planner", "other"]
        finally:
            process.send_signal(signal.SIGINT)


def test_next_level_where_they_disagree(page: Page, address: str) -> None:
    page.route("**/api/disagree", lambda route: route.fulfill(json={"level": 2000099, "last": 2000100}))
    page.goto(f"{address}#{LEVEL}")
    page.wait_for_selector(TREE)
    assert page.is_hidden("#differ")
    page.goto(f"{address}#{LEVEL}&vs=shipped/navigation-qnet&a=W&b=W")
    page.wait_for_selector(".pane:nth-child(2):not(.busy) .tree svg")
    page.keyboard.press("n")
    page.wait_for_selector(".pane:nth-child(2):not(.busy) >> text=Step 0;")
    assert page.input_value("#level") == "2000099"


def test_saved_search_is_downloaded_opened_and_drawn(page: Page, address: str, tmp_path: Path) -> None:
    page.goto(f"{address}#{LEVEL}&iterations=5")
    page.wait_for_selector(TREE)
    for part in ("json", "picture"):
        with page.expect_download() as download:
            page.click(f'[data-part="save-{part}"]')
        download.value.save_as(tmp_path / f"saved.{part}")
    document = read_search(tmp_path / "saved.json")
    assert len(document["iterations"]) == 5
    drawn = xml.etree.ElementTree.parse(tmp_path / "saved.picture").getroot()
    assert len(drawn.findall(".//*[@data-id]")) == 21
    assert not [element for element in drawn.iter() if "script" in element.tag]

    (tmp_path / "saved.json").rename(tmp_path / "mine.json")
    page.set_input_files("#file", tmp_path / "mine.json")
    page.wait_for_selector("text=A saved search: navigation, level 2000014, step 0.")
    assert page.locator(".tree g.node").count() == 21
    assert page.is_disabled("#forth")
    assert page.is_hidden("#iterations")
    assert [option.get_attribute("value") for option in page.query_selector_all("#vs option")] == [
        "",
        "file/mine.json",
    ]
    page.keyboard.press("ArrowLeft")
    assert page.inner_text("#iteration-text") == "iteration 4 / 5"


def test_file_that_is_no_search_is_refused(browser: Any, address: str, tmp_path: Path) -> None:
    page = browser.new_page()  # the console notes the refused request
    page.goto(f"{address}#{LEVEL}")
    page.wait_for_selector(TREE)
    (tmp_path / "bad.json").write_text("[]")
    page.set_input_files("#file", tmp_path / "bad.json")
    page.wait_for_selector("#error:visible")
    assert page.inner_text("#error").startswith("bad.json: the file: not a dtsn.search document")
    page.close()


def numbers_outside_their_nodes(page: Page) -> list[str]:
    outside = """(texts) => texts
        .filter((t) => t.getBBox().width > t.parentNode.querySelector(".disc").getBBox().width)
        .map((t) => t.textContent)"""
    return page.locator(".tree .order").evaluate_all(outside)


def test_large_trees_can_be_seen_whole_and_read(page: Page, address: str) -> None:
    page.goto(f"{address}#{LEVEL}&iterations=200")
    page.wait_for_selector('.pane:not(.busy) .tree [data-id="800"]')
    size = """() => {
        const box = document.querySelector(".tree"), seen = box.querySelector("svg").getBoundingClientRect();
        return [seen.width / box.clientWidth, seen.height / box.clientHeight];
    }"""
    assert page.locator(".tree .order.digits-3").count() == 101  # 100 to 200, at once
    assert numbers_outside_their_nodes(page) == []
    page.keyboard.press("0")
    wide, high = page.evaluate(size)
    assert wide <= 1.02
    assert high <= 1.02
    for _ in range(5):
        page.keyboard.press("+")
    assert page.evaluate(size)[1] > 5
    assert numbers_outside_their_nodes(page) == []
    assert page.locator(".tree .value").count() > 500


@pytest.mark.parametrize("view", ["", "&vs=shipped/navigation-qnet", "&truth=1&iterations=40"])
def test_footer_hides_nothing(page: Page, address: str, view: str) -> None:
    page.set_viewport_size({"width": 1280, "height": 800})
    page.goto(f"{address}#{LEVEL}{view}")
    page.wait_for_selector(".pane:last-child:not(.busy) .tree svg")
    content, footer = (page.locator(part).bounding_box() for part in ("#content", "footer"))
    assert content["y"] + content["height"] <= footer["y"] + 0.5
    assert footer["y"] + footer["height"] <= 800.5
    page.locator(".open-set").last.scroll_into_view_if_needed()
    last = page.locator(".open-set").last.bounding_box()
    assert last["y"] + last["height"] <= footer["y"]
    if not view.startswith("&vs"):  # one solver needs no scrolling
        over = "(c) => c.scrollHeight - c.clientHeight"
        assert page.locator("#content").evaluate(over) <= 14


def test_true_values_are_shown(page: Page, address: str) -> None:
    with page.expect_response("**/api/search") as answered:
        page.goto(f"{address}#{LEVEL}")
    scene = answered.value.json()["search"]["scene"]
    page.wait_for_selector(TREE)
    assert page.is_hidden(".true-q >> nth=0")
    page.keyboard.press("v")
    shown = page.locator(".true-q").all_inner_texts()
    assert shown == ["wall" if q is None else f"{q:.0f}".replace("-", "−") for q in scene["true_q"]]
    assert page.locator(".truth text").count() == sum(
        v is not None for row in scene["true_values"] for v in row
    )
    assert "truth=1" in page.url
    assert re.match(
        "The plan of [0-9]+ steps? can be walked|The plan runs into a wall", page.inner_text(".plan")
    )


def test_bad_runs_are_listed_and_cannot_be_chosen(page: Page, address: str) -> None:
    page.goto(f"{address}#{LEVEL}")
    page.wait_for_selector(TREE)
    option = page.locator('#run option[value="bad"]')
    assert option.is_disabled()
    assert option.inner_text().startswith("bad: cannot read bad/state.json")
    assert "must be readable JSON" in (option.get_attribute("title") or "")
    assert page.locator('#vs option[value="bad"]').count() == 0


def test_fits_a_phone_in_light_and_dark(page: Page, address: str) -> None:
    page.set_viewport_size({"width": 380, "height": 800})
    page.goto(f"{address}#{LEVEL}&vs=shipped/navigation-qnet")
    page.wait_for_selector(".pane:nth-child(2):not(.busy) .tree svg")
    assert page.evaluate("document.documentElement.scrollWidth") <= 380
    page.click("#settings summary")
    assert page.is_visible("#temperature")
    assert page.evaluate("document.documentElement.scrollWidth") <= 380

    background = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(background)
    page.click("#theme")
    dark = page.evaluate(background)
    assert light != dark
    page.reload()
    assert page.evaluate(background) == dark
    page.click("#theme")
    page.emulate_media(color_scheme="dark")
    assert page.evaluate(background) == light  # the toggle wins over the system
    page.keyboard.press("?")
    assert page.is_visible("#help")
    page.keyboard.press("Escape")
    assert page.is_hidden("#help")


def test_bad_settings_say_so_and_the_page_goes_on(browser: Any, address: str) -> None:
    page = browser.new_page()  # the console notes the refused request
    page.goto(f"{address}#run=nowhere&{LEVEL}")
    page.wait_for_selector("#error:visible")
    assert "unknown run 'nowhere'" in page.inner_text("#error")
    page.select_option("#run", "shipped/navigation-qnet")
    page.wait_for_selector(TREE)
    assert page.is_hidden("#error")
    assert page.is_disabled("#iterations")  # nothing to choose for a Q-network
    page.select_option("#run", "shipped/navigation-dtsn")
    page.wait_for_selector("text=T = 10")
    page.fill("#iterations", "1000")
    page.locator("#iterations").press("Enter")
    page.wait_for_selector("#error:visible")
    assert page.locator("g.node").count() == 41
    page.close()


def test_full_tree_without_inner_values_is_drawn(page: Page, address: str) -> None:
    question = {"run": "shipped/navigation-dtsn", "level": 5, "options": {"exits": "2"}, "iterations": 5}
    reply = page.request.post(f"{address}api/search", data=question).json()
    full = reply["search"]
    full["solver"] |= {"name": "treeqn", "planner": "full", "rule": None, "temperature": None}
    for node in full["nodes"]:
        node |= {"value": None, "path_value": None} if node["expanded_at"] else {}
    for iteration in full["iterations"][:-1]:
        iteration["q"] = [None] * 4
    page.route("**/api/search", lambda route: route.fulfill(json=reply))
    page.goto(f"{address}#level=5&exits=2")
    page.wait_for_selector("text=full tree, 5 expansions")
    page.keyboard.press("ArrowLeft")
    assert page.locator(".q-row .q").all_inner_texts() == ["–"] * 4


def test_procgen_run_is_shown_and_stepped(page: Page, address: str, tmp_path: Path) -> None:
    save_procgen_solver(tmp_path)  # or skip
    page.goto(f"{address}#{LEVEL}")
    page.wait_for_selector(TREE)
    with page.expect_response("**/api/search") as answered:
        page.select_option("#run", "leaper/one")
    page.wait_for_selector(".pane:not(.busy) img.frame")
    search = answered.value.json()["search"]
    assert page.evaluate("document.querySelector('img.frame').naturalWidth") == 64
    assert [page.input_value(f"#{name}") for name in ("game", "mode", "level")] == [
        "leaper",
        "easy",
        "1500000000",
    ]
    assert page.is_visible("#game")
    assert page.locator("#exits").count() == 0
    names = page.locator(".q-row .name").all_inner_texts()
    assert names == [*"↙←↖↓·↑↘→↗DAWSQE"]
    # Every expansion is drawn, three leaves below each at most, and the others are counted.
    drawn = {int(node.get_attribute("data-id")) for node in page.query_selector_all(".tree g.node")}
    assert {step["expanded"] for step in search["iterations"]} | set(search["best_path"]) <= drawn
    counted = sum(int(text.text_content()) for text in page.query_selector_all(".tree .rest"))
    assert len(drawn) + counted == len(search["nodes"]) == 61
    assert len(drawn) == 1 + 3 + 3 * 4

    page.keyboard.press("Enter")
    page.wait_for_selector("text=Step 1; score")
    page.click('.q-row:has-text("↑")')
    page.wait_for_selector("text=Step 2; score")
    assert re.search(r"[#&]a=[0-9a-e]5$", page.url)
    page.reload()
    page.wait_for_selector("text=Step 2; score")
    page.select_option("#mode", "hard")  # another level
    page.wait_for_selector("text=Step 0; score")

    page.keyboard.press("c")
    page.wait_for_selector(".pane:nth-child(2):not(.busy) img.frame")
    assert "vs=leaper%2Ftwo" in page.url
    assert page.locator('#vs option[value^="shipped/"]').count() == 0  # incompatible ones are not offered
    page.select_option("#run", "shipped/navigation-dtsn")
    page.wait_for_selector(".pane:not(.busy) .place.current")
    assert page.is_hidden("#error")
    assert page.locator("#game").count() == 0
    assert page.input_value("#vs") == ""
    assert page.input_value("#level") == "2000003"

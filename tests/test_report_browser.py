"""The HTML report in a real browser: Chromium, without a window."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from scripts.report import main
from tests.report_runs import ATTACK, MIXED, write_all
from tests.tools import tool

pytest_plugins = ["tests.run_fixtures"]

TOKENS = "#ours .token"
HUMANEVAL, MTBENCH = 0, 1  # places in the list
LOOKS = [{"color_scheme": s, "viewport": {"width": w, "height": 800}} for s in ("light", "dark") for w in (1400, 420)]


@dataclass
class Visit:
    """A page, and what its browser has to say about it: requests, console messages, errors."""

    page: Page
    requests: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)

    def choose(self, group: int, run: str, prompt: str) -> None:
        self.page.select_option("#group", index=group)
        self.page.select_option("#run", label=run)
        self.page.select_option("#prompt", prompt)

    def shown(self, selector: str) -> list[str]:
        return [text or "" for text in self.page.locator(selector).all_text_contents()]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    path = tool("chromium", "chromium-browser", "google-chrome")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    write_all(folder, model)
    assert main([str(folder)]) == 0
    return folder / "report.html"


@pytest.fixture
def visit(browser: Browser, report: Path, request: pytest.FixtureRequest) -> Iterator[Visit]:
    """The page opened; afterwards nothing may have been fetched or complained about."""
    context = browser.new_context(**getattr(request, "param", {}))
    visit = Visit(context.new_page())
    visit.page.on("request", lambda request: visit.requests.append(request.url))
    visit.page.on("console", lambda message: visit.complaints.append(message.text))
    visit.page.on("pageerror", lambda error: visit.complaints.append(str(error)))
    visit.page.on("dialog", lambda dialog: visit.complaints.append(dialog.message))
    visit.page.goto(report.as_uri())
    yield visit
    assert visit.complaints == []
    assert [url for url in visit.requests if not url.startswith("data:")] == [report.as_uri()]
    context.close()


def test_tokens_and_their_sources(visit: Visit) -> None:
    visit.choose(HUMANEVAL, "fafo-stream-llm", "a/2")
    assert "".join(visit.shown(TOKENS)) == MIXED
    classes = visit.page.locator(TOKENS).evaluate_all("all => all.map(e => e.classList[1])")
    assert classes == list("pppmooomwwwmm")
    assert visit.shown("#ours .step")[0] == "x = "
    looks = {
        letter: visit.page.locator(f"{TOKENS}.{letter}").first.evaluate(
            "e => { const s = getComputedStyle(e); return s.backgroundColor + s.borderBottomStyle + s.borderTopWidth }"
        )
        for letter in "mpow"
    }
    assert len(set(looks.values())) == 4
    assert "abc the model's own token: 4 (31%)" in visit.shown("#legend li")


def test_an_attack_is_a_text(visit: Visit) -> None:
    visit.choose(HUMANEVAL, "fafo-stream-llm", ATTACK)
    assert "".join(visit.shown(TOKENS)) == ATTACK
    assert visit.shown("#facts dd")[0] == ATTACK
    assert visit.page.locator("img[onerror]").count() == 0


def test_a_difference(visit: Visit) -> None:
    visit.choose(HUMANEVAL, "fafo-stream-llm", "a/10")
    assert "differs from token 6 on" in visit.shown("#facts dd")
    assert visit.shown("#difference mark") == ["y = 1\n", MIXED]
    assert visit.page.locator("#difference").is_visible()
    visit.page.click("#previous")
    assert visit.shown("#facts dd")[0] == "a/2"
    assert not visit.page.locator("#difference").is_visible()


def test_by_keyboard_and_pointer(visit: Visit) -> None:
    visit.choose(HUMANEVAL, "fafo-stream-llm", "a/2")
    first = visit.page.locator(f"{TOKENS}[tabindex='0']")
    first.focus()
    for key in ("ArrowRight", "End", "ArrowLeft", "Home", "ArrowRight"):
        visit.page.keyboard.press(key)
    (said,) = visit.shown("#detail")
    assert said.startswith(
        'Token 2 of 13 " ": guess from the prompt. Step 1 of 4: accepted length 4, this is number 2.'
    )


def test_playing(visit: Visit) -> None:
    visit.choose(HUMANEVAL, "fafo-stream-llm", "a/2")
    visit.page.locator("#time").fill("0")
    assert visit.page.locator("#ours .coming").count() == 4
    visit.page.locator("#time").fill("200")  # of 400: half of plain decoding's 1.8 seconds
    assert "0.90 s: fafo-stream-llm 13 of 13 tokens, plain decoding 4 of 13 tokens" in visit.shown("#clock")
    visit.page.select_option("#pace", "16")
    visit.page.click("#play")
    expect(visit.page.locator("#clock")).to_contain_text("plain decoding 13 of 13 tokens")
    expect(visit.page.locator("#play")).to_have_text("Play")
    assert visit.page.locator(".coming").count() == 0


def test_turns_and_the_baseline_alone(visit: Visit) -> None:
    visit.choose(MTBENCH, "baseline", "chat")
    assert visit.shown("#ours .turn") == ["one\n", "two é\n"]
    assert not visit.page.locator("#theirs").is_visible()


@pytest.mark.parametrize("visit", LOOKS, indirect=True)
def test_looks(visit: Visit) -> None:
    page = visit.page
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    paper, ink = page.evaluate("(({ backgroundColor: a, color: b }) => [a, b])(getComputedStyle(document.body))")
    assert (paper == "rgb(255, 255, 255)") == page.evaluate("matchMedia('(prefers-color-scheme: light)').matches")
    assert paper != ink

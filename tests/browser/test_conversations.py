"""The chat's conversations in Chromium: kept, branched, searched, shared, compared; with files, drafts, estimates."""

from __future__ import annotations

import json
import re

import pytest
from playwright.sync_api import expect

from tests.browser.test_chat import answers, ask, pick

pytestmark = [pytest.mark.browser]
PIXEL = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010806000000"
    "1f15c4890000000d49444154789c6360000002000001e221bc330000000049454e44ae426082"
)


def ended(page, number=1):
    """Wait until so many answers are there and none is made."""
    expect(answers(page)).to_have_count(number)
    expect(answers(page).last.locator(".foot")).to_be_visible()
    expect(page.get_by_role("button", name="Send", exact=True)).to_be_visible()


def entries(page):
    return page.locator("#conversations li")


def entry(page, title):
    return entries(page).filter(has_text=title)


def act(page, title, name):
    entry(page, title).hover()
    entry(page, title).get_by_role("button").click()
    page.locator("#conversation-menu").get_by_role("button", name=name).click()


def converse(page, text, model="echo"):
    pick(page, model)
    ask(page, text)
    ended(page)
    expect(entry(page, text)).to_be_visible()


def test_a_closed_tab_loses_nothing_and_its_answer_goes_on(visit, job):
    visitor = visit("member")
    page = visitor.page
    page.get_by_role("button", name="Parameters").click()
    page.get_by_label("System prompt").fill("Count on.")
    page.get_by_role("button", name="Close parameters").click()
    with job("Member", "converse over a closed tab", page) as hand:
        hand.click(page.locator("#model-button"))
        hand.click(page.get_by_role("radio", name=re.compile(r"^slow\b")))
        ask(page, "Count after closing")
        expect(answers(page).last.locator(".prose")).to_contain_text("w3")
        page.get_by_label("Message", exact=True).fill("a draft\nof two lines")
        expect(entry(page, "Count after closing")).to_be_visible()
        page.close()
        hand.page = page = visitor.context.new_page()
        page.goto("/chat/")
        expect(page.get_by_text("What would you like to know?")).to_be_visible()
        hand.click(entry(page, "Count after closing").get_by_role("link"))
        answer = answers(page).last
        expect(answer.locator(".prose")).to_contain_text("w40")
        ended(page)
    assert answer.locator(".prose").inner_text().split() == [f"w{number}" for number in range(1, 41)]
    expect(page.get_by_label("Message", exact=True)).to_have_value("a draft\nof two lines")
    expect(page.get_by_label("System prompt")).to_have_value("Count on.")
    expect(page.locator("#model-name")).to_have_text("slow")


@pytest.mark.sweep
def test_a_draft_of_a_new_chat_is_found_again(visit):
    visitor = visit("member")
    page = visitor.page
    page.get_by_label("Message", exact=True).fill("half a thought")
    page.reload()
    expect(page.get_by_label("Message", exact=True)).to_have_value("half a thought")
    page.close()
    page = visitor.context.new_page()
    page.goto("/chat/")
    expect(page.get_by_label("Message", exact=True)).to_have_value("")
    entry(page, "half a thought").get_by_role("link").click()
    expect(page.get_by_label("Message", exact=True)).to_have_value("half a thought")


def test_editing_and_regenerating_lose_nothing(visit):
    page = visit("member").page
    converse(page, "first branch")
    answers(page).last.get_by_role("button", name="Regenerate").click()
    expect(answers(page).last.locator(".branches")).to_have_text("‹2/2›")
    ended(page)
    ask(page, "a second question")
    ended(page, 2)
    first = page.locator(".turn.user").first
    first.hover()
    first.get_by_role("button", name="Edit").click()
    page.get_by_label("Your message").fill("other branch")
    page.get_by_role("button", name="Send again").click()
    expect(answers(page).last.locator(".prose")).to_have_text("other branch")
    ended(page)
    page.reload()
    expect(answers(page).last.locator(".prose")).to_have_text("other branch")
    back = page.locator(".turn.user").first.get_by_role("button", name="Previous branch")
    back.focus()
    page.keyboard.press("Enter")
    expect(page.locator(".bubble")).to_have_text(["first branch", "a second question"])
    expect(page.locator(".turn.user").first.get_by_role("button", name="Next branch")).to_be_focused()
    expect(answers(page).first.locator(".branches")).to_have_text("‹2/2›")
    answers(page).first.get_by_role("button", name="Previous branch").click()
    expect(page.locator(".bubble")).to_have_text(["first branch"])


@pytest.mark.sweep
def test_two_windows_lose_nothing_of_each_other(visit):
    visitor = visit("member")
    one = visitor.page
    converse(one, "shared by two windows")
    two = visitor.context.new_page()
    two.goto(one.url)
    expect(answers(two)).to_have_count(1)
    ask(one, "asked in the first")
    ended(one, 2)
    ask(two, "asked in the second")
    ended(two, 2)
    expect(answers(two).first.locator(".foot")).to_be_visible()
    two.reload()
    questions = two.locator(".turn.user")
    expect(questions).to_have_count(2)
    expect(questions.last.locator(".branches")).to_have_text(re.compile("2"))
    seen = {questions.last.locator(".bubble").inner_text()}
    questions.last.locator(".branches button:enabled").first.click()
    seen.add(questions.last.locator(".bubble").inner_text())
    assert seen == {"asked in the first", "asked in the second"}


def test_conversations_are_searched_renamed_exported_and_deleted_with_a_way_back(visit):
    page = visit("member").page
    converse(page, "a word like quokka")
    page.keyboard.press("Control+Shift+O")
    converse(page, "another like numbat")
    page.get_by_label("Search conversations").fill("QUOKKA")
    expect(entries(page)).to_have_count(1)
    act(page, "quokka", "Rename")
    page.get_by_label("Name", exact=True).fill("Of marsupials")
    page.keyboard.press("Enter")
    expect(entries(page).get_by_role("link")).to_have_text(re.compile("Of marsupials"))
    with page.expect_download() as download:
        act(page, "Of marsupials", "Export as Markdown")
    assert download.value.suggested_filename == "Of-marsupials.md"
    assert "## You\n\na word like quokka\n\n## echo\n\na word like quokka" in download.value.path().read_text()
    with page.expect_download() as download:
        act(page, "Of marsupials", "Export as JSON")
    assert [turn["role"] for turn in json.loads(download.value.path().read_text())["turns"]] == ["user", "assistant"]
    act(page, "Of marsupials", "Delete")
    expect(entries(page)).to_have_count(0)
    page.reload()
    page.get_by_label("Search conversations").fill("quokka")
    expect(page.locator("#no-conversations")).to_have_text("None has these words.")
    page.get_by_label("Search conversations").fill("numbat")
    act(page, "numbat", "Delete")
    expect(entries(page)).to_have_count(0)
    page.locator("#notice").get_by_role("button", name="Undo").click()
    expect(entry(page, "numbat")).to_be_visible()
    expect(page.locator(".bubble")).to_have_text("another like numbat")
    page.reload()
    expect(page.locator(".bubble")).to_have_text("another like numbat")


def test_where_nothing_may_be_stored_it_stays_in_the_browser(visit):
    visitor = visit("private")
    page = visitor.page
    sent = []
    page.on("request", lambda request: sent.append((request.method, request.url)))
    expect(page.locator(".history .where")).to_contain_text("in this browser alone")
    converse(page, "a secret question")
    answers(page).last.get_by_role("button", name="Regenerate").click()
    expect(answers(page).last.locator(".branches")).to_have_text("‹2/2›")
    ended(page)
    page.close()
    page = visitor.context.new_page()
    page.on("request", lambda request: sent.append((request.method, request.url)))
    page.goto("/chat/")
    page.get_by_label("Search conversations").fill("SECRET")
    entry(page, "a secret question").get_by_role("link").click()
    expect(answers(page).last.locator(".branches")).to_have_text("‹2/2›")
    entry(page, "a secret question").hover()
    entry(page, "a secret question").get_by_role("button").click()
    expect(page.get_by_role("button", name="Share …")).to_be_hidden()
    page.keyboard.press("Escape")
    act(page, "a secret question", "Delete")
    expect(page.locator(".turn")).to_have_count(0)
    page.locator("#notice").get_by_role("button", name="Undo").click()
    expect(page.locator(".bubble")).to_have_text("a secret question")
    assert not [one for one in sent if "/chat/conversations/" in one[1]]
    seen = page.evaluate("fetch('/chat/conversations/').then((answer) => answer.json())")
    assert seen == {"data": []}


def test_a_shared_conversation_is_read_by_members_and_nobody_else(visit):
    page = visit("member").page
    converse(page, "to be shared", "river")
    page.get_by_role("button", name="Actions for this conversation").click()
    page.get_by_role("button", name="Share …").click()
    dialog = page.locator("#share-dialog")
    dialog.get_by_role("button", name="Share", exact=True).click()
    expect(dialog.get_by_role("button", name="Stop sharing")).to_be_visible()
    address = page.locator("#shared-address").inner_text()
    dialog.get_by_role("button", name="Close").click()
    expect(entry(page, "to be shared")).to_contain_text("shared")
    reader = visit("owner", address).page
    expect(reader.get_by_role("heading", name="to be shared", exact=True)).to_be_visible()
    expect(reader.locator(".prose h2", has_text="Rivers")).to_be_visible()
    expect(reader.locator(".prose .hljs-keyword").first).to_have_text("def")
    expect(reader.locator("textarea, #composer")).to_have_count(0)
    stranger = visit("broke", address)
    expect(stranger.page.get_by_text("There is no page at this address")).to_be_visible()
    stranger.complaints.clear()  # the page's own 404


def test_an_image_goes_to_a_model_that_sees_and_to_no_other(visit):
    page = visit("member").page
    image = {"name": "a pixel.png", "mimeType": "image/png", "buffer": PIXEL}
    pick(page, "echo")
    page.locator("#file").set_input_files(image)
    expect(page.locator("#notice")).to_contain_text("the model that is picked sees none")
    expect(page.locator("#attachments")).to_be_hidden()
    pick(page, "seer")
    page.locator("#file").set_input_files(image)
    expect(page.locator("#attachments li")).to_have_text(["a pixel.png"])
    page.reload()
    expect(page.locator("#attachments img")).to_be_visible()  # of the draft
    pick(page, "echo")
    ask(page, "What is it?")
    expect(page.locator("#notice")).to_contain_text("pick one whose card says “sees images”")
    expect(page.locator(".turn")).to_have_count(0)
    pick(page, "seer")
    page.get_by_label("Message", exact=True).press("Enter")
    ended(page)
    expect(answers(page).last.locator(".prose")).to_contain_text("What is it?")
    expect(page.locator(".turn.user img")).to_have_attribute("src", re.compile("^data:image/png;base64,"))


@pytest.mark.sweep
def test_text_files_go_in_as_text_and_what_is_too_large_is_told(visit):
    page = visit("member").page
    pick(page, "echo")
    files = page.locator("#file")
    files.set_input_files({"name": "big.txt", "mimeType": "text/plain", "buffer": b"x" * 1_100_000})
    expect(page.locator("#notice")).to_contain_text("“big.txt” is too large: a message has at most 1 MB")
    files.set_input_files({"name": "song.mp3", "mimeType": "audio/mpeg", "buffer": b"\xff\xfb\x90\x00"})
    expect(page.locator("#notice")).to_contain_text("“song.mp3” is neither text nor an image")
    files.set_input_files({"name": "notes.md", "mimeType": "text/markdown", "buffer": b"one ``` two"})
    page.evaluate(
        """() => {
          const transfer = new DataTransfer();
          transfer.items.add(new File(["dropped text"], "dropped.txt", { type: "text/plain" }));
          const drop = new DragEvent("drop", { dataTransfer: transfer, cancelable: true });
          document.getElementById("composer").dispatchEvent(drop);
        }"""
    )
    expect(page.locator("#attachments li")).to_have_text(["notes.md", "dropped.txt"])
    page.get_by_role("button", name="Remove dropped.txt").click()
    ask(page, "Read")
    ended(page)
    expect(answers(page).last.locator(".prose")).to_contain_text("notes.md:")
    expect(answers(page).last.locator("pre code")).to_have_text("one ``` two\n")
    expect(page.locator(".turn.user .files li")).to_have_text(["notes.md"])


def test_two_models_are_compared_and_one_goes_on(visit):
    page = visit("member").page
    pick(page, "river")
    page.get_by_role("button", name="Compare two models").click()
    page.get_by_label("and", exact=True).select_option("echo")
    page.get_by_label("Message", exact=True).fill("to both")
    expect(page.locator("#estimate")).to_contain_text("by echo")
    expect(page.locator("#estimate")).to_contain_text("by river")
    page.keyboard.press("Enter")
    pair = page.locator(".compared .turn")
    expect(pair).to_have_count(2)
    for reading, number in (("credits", 2), ("ttft", 2), ("rate", 1)):  # two words are too few for a rate
        expect(pair.locator(f"[data-reading={reading}]")).to_have_count(number)
    expect(pair.locator(".meter .model")).to_have_text(["river", "echo"])
    page.reload()
    expect(pair).to_have_count(2)
    pair.last.get_by_role("button", name="Go on with this one").click()
    expect(page.locator(".compared")).to_have_count(0)
    expect(answers(page)).to_have_count(1)
    expect(answers(page).last.locator(".prose")).to_have_text("to both")
    expect(answers(page).last.locator(".branches")).to_have_text("‹2/2›")
    expect(page.locator("#model-name")).to_have_text("echo")


def test_what_is_written_is_estimated_before_it_is_sent(visit):
    page = visit("member").page
    pick(page, "echo")
    page.get_by_label("Message", exact=True).fill("word " * 800)
    expect(page.locator("#estimate")).to_contain_text(
        re.compile(r"^[\d,]+ tokens · probably 0\.\d+ credits, at most 0\.\d+")
    )
    title = re.compile(r"With an answer of [\d,]+ tokens, (like half|assumed)")
    expect(page.locator("#estimate span")).to_have_attribute("title", title)
    words = re.compile("of 8,192 tokens of the model’s context")
    expect(page.locator("#gauge meter")).to_have_attribute("aria-label", words)
    page.get_by_label("Message", exact=True).fill("word " * 8000)
    expect(page.locator("#estimate .warn")).to_be_visible()
    page.get_by_label("Message", exact=True).fill("")
    expect(page.locator("#estimate")).to_be_empty()


@pytest.mark.sweep
def test_finished_code_is_coloured_and_the_request_is_one_click_away(visit):
    page = visit("member").page
    converse(page, "colours", "river")
    expect(answers(page).last.locator("pre .hljs-keyword").first).to_have_text("def")
    expect(answers(page).last.locator("pre code")).to_have_text('def flow():\n    return "down"\n')
    answers(page).last.get_by_role("link", name="Request", exact=True).click()
    expect(page.get_by_text("You asked for river.")).to_be_visible()


@pytest.mark.sweep
def test_on_a_phone_the_history_is_a_drawer_and_names_are_whole(visit):
    page = visit("member").page
    page.set_viewport_size({"width": 390, "height": 800})
    page.reload()
    drawer = page.get_by_role("button", name="Conversations", exact=True)
    page.locator("#model-name").evaluate("name => { name.textContent = 'qwen3-0.6b-instruct'; }")
    assert page.locator("#model-name").evaluate("name => name.scrollWidth <= name.clientWidth")
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    expect(page.locator("#history")).to_be_hidden()
    drawer.click()
    expect(page.get_by_label("Search conversations")).to_be_focused()
    page.keyboard.press("Escape")
    expect(page.locator("#history")).to_be_hidden()
    expect(drawer).to_be_focused()
    page.get_by_role("button", name="Actions for this conversation").click()
    page.get_by_role("button", name="Compare two models").click()
    expect(page.locator("#second")).to_be_focused()
    page.get_by_role("button", name="Actions for this conversation").click()
    page.get_by_role("button", name="Compare two models").click()
    expect(page.locator("#second")).to_be_hidden()
    pick(page, "river")
    for number in range(3):
        ask(page, f"fill the page {number}")
        ended(page, number + 1)
    page.locator("#scroller").evaluate("scroller => { scroller.scrollTop = 0; }")
    jump = page.get_by_role("button", name="Jump to latest")
    expect(jump).to_be_visible()
    assert "rgba(0, 0, 0, 0)" not in jump.evaluate("button => getComputedStyle(button).backgroundColor")


@pytest.mark.sweep
def test_what_could_not_be_saved_is_saved_later(visit):
    visitor = visit("member")
    page = visitor.page
    converse(page, "saved at once")
    visitor.context.route("**/chat/conversations/*/*", lambda route: route.abort())
    ask(page, "while the server is away")
    ended(page, 2)
    expect(page.locator("#unsaved")).to_contain_text("Not saved. The server can’t be reached")
    page.close()
    visitor.context.unroute("**/chat/conversations/*/*")
    visitor.complaints.clear()
    page = visitor.context.new_page()
    with page.expect_request(lambda request: request.method == "PUT"):
        page.goto("/chat/")
    entry(page, "saved at once").get_by_role("link").click()
    expect(page.locator(".bubble")).to_have_text(["saved at once", "while the server is away"])

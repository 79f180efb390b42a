"""The chat page in Chromium, over a real gateway with fake engines."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("browser")]


def pick(page, model):
    page.locator("#model-button").click()
    page.get_by_role("radio", name=re.compile(rf"^{model}\b")).click()


def ask(page, text):
    page.get_by_label("Message", exact=True).fill(text)
    page.keyboard.press("Enter")


def answers(page):
    return page.locator(".turn.assistant")


def test_an_answer_streams_and_says_what_it_cost(visit):
    visitor = visit("member")
    page = visitor.page
    before = page.locator("#balance").get_attribute("title") or page.locator("a.balance").get_attribute("title")
    pick(page, "river")
    ask(page, "Tell me about rivers")
    answer = answers(page).last
    expect(answer.locator("[data-reading=rate]")).to_be_visible()
    expect(answer.locator("h2", has_text="Rivers")).to_be_visible()
    expect(answer.locator("strong", has_text="carries")).to_be_visible()
    expect(answer.locator("td.align-right")).to_have_text("1230")
    expect(answer.locator("ol > li")).to_have_count(2)
    expect(answer.locator("pre code")).to_have_text('def flow():\n    return "down"\n')
    link = answer.get_by_role("link", name="the source")
    assert link.get_attribute("rel") == "noopener noreferrer"
    meter = answer.locator(".meter")
    expect(meter).to_contain_text("river")
    for reading in ("input", "cached", "output", "credits", "ttft"):
        expect(meter.locator(f"[data-reading={reading}]")).to_be_visible()
    expect(page.locator("a.balance")).not_to_have_attribute("title", before)
    charged = float(meter.locator("[data-reading=credits]").inner_text().split()[0])
    left = float(page.locator("a.balance").get_attribute("title").split()[0])
    assert float(before.split()[0].replace(",", "")) - left == pytest.approx(charged, abs=1e-9)
    expect(page.locator("#live")).to_have_text("Answer finished.")
    expect(page.get_by_label("Message", exact=True)).to_be_focused()
    answer.get_by_text("Why this model?").click()
    expect(answer.locator(".route-body")).to_contain_text("You asked for river")
    expect(answer.locator(".route-body")).to_contain_text("chosen")


def test_what_stands_while_streaming_equals_what_stands_at_the_end(visit):
    page = visit("member").page
    same = page.evaluate(
        """async () => {
          const { Growing, render } = await import("/static/chat/markdown.js");
          const text = [
            "# a", "p *q*", "1. one", "2. two", "   more", "```js\\nlet x", "let y\\n```",
            "| a | b |\\n|--|--|\\n| 1 | 2 |", "> q", "end",
          ].join("\\n\\n");
          const grown = document.createElement("div");
          const growing = new Growing(grown);
          for (let length = 1; length <= text.length; length += 1) {
            growing.grow(text.slice(0, length));
            await new Promise(requestAnimationFrame);
          }
          const kept = grown.children.length;
          const open = grown.querySelector(".open");
          open.replaceWith(...open.childNodes);
          const whole = document.createElement("div");
          whole.append(render(text));
          const plain = (node) => node.innerHTML.replace(/\\s+/g, " ");
          return [plain(grown) === plain(whole), kept > 4, plain(grown), plain(whole)];
        }"""
    )
    assert same[:2] == [True, True], same


def test_auto_explains_who_was_passed_over(visit):
    page = visit("member").page
    pick(page, "auto")
    ask(page, "Which one?")
    answer = answers(page).last
    expect(answer.locator(".meter .model")).to_be_visible()
    page.keyboard.press("Escape")
    answer.get_by_text("Why this model?").click()
    expect(answer.locator(".route-body .chosen")).to_have_count(1)


def test_scripts_in_an_answer_are_inert(visit):
    visitor = visit("member")
    page = visitor.page
    asked_for = []
    page.on("request", lambda request: asked_for.append(request.url))
    pick(page, "evil")
    ask(page, '<img src=x onerror="window.broken=1"><script>window.broken=1</script>')
    answer = answers(page).last
    expect(answer.locator("[data-reading=rate]")).to_be_visible()
    prose = answer.locator(".prose")
    expect(prose).to_contain_text("<script>window.broken=1</script>")
    expect(prose.locator("img, script, [onclick], [onerror]")).to_have_count(0)
    assert [link.get_attribute("href") for link in prose.locator("a").all()] == ["https://safe.example/"]
    expect(page.locator(".bubble").last).to_contain_text("<script>window.broken=1</script>")
    assert page.evaluate("window.broken") is None
    assert not [url for url in asked_for if "tracker" in url or url.endswith("/x")]


@pytest.mark.parametrize("by", ["button", "Escape"])
def test_stop_keeps_what_came_and_charges_only_that(visit, by):
    page = visit("member").page
    pick(page, "endless")
    ask(page, "Go on")
    answer = answers(page).last
    expect(answer.locator(".prose")).to_contain_text("w1 w2 w3 w4 w5")
    expect(page.get_by_role("button", name="Send", exact=True)).to_be_hidden()
    if by == "button":
        page.get_by_role("button", name="Stop").click()
    else:
        page.keyboard.press("Escape")
    expect(answer).to_contain_text("You stopped this answer")
    expect(answer.locator("[data-reading=output]")).to_have_text("5 out")
    expect(page.get_by_label("Message", exact=True)).to_be_focused()


def test_regenerate_edit_and_new_chat(visit):
    page = visit("member").page
    pick(page, "echo")
    ask(page, "first words")
    expect(answers(page)).to_have_count(1)
    expect(answers(page).last.locator(".prose")).to_have_text("first words")
    answers(page).last.get_by_role("button", name="Regenerate").click()
    expect(answers(page).last.locator("[data-reading=credits]")).to_be_visible()
    expect(answers(page)).to_have_count(1)
    ask(page, "second words")
    expect(answers(page)).to_have_count(2)
    expect(answers(page).last.locator("[data-reading=rate]")).to_be_visible()
    first = page.locator(".turn.user").first
    first.hover()
    first.get_by_role("button", name="Edit").click()
    page.get_by_label("Your message").fill("other words")
    page.get_by_role("button", name="Send again").click()
    expect(answers(page)).to_have_count(1)
    expect(answers(page).last.locator(".prose")).to_have_text("other words")
    expect(answers(page).last.get_by_role("button", name="Regenerate")).to_be_visible()
    page.reload()
    expect(answers(page).last.locator(".prose")).to_have_text("other words")
    page.keyboard.press("Control+Shift+O")
    expect(page.locator(".turn")).to_have_count(0)
    expect(page.get_by_text("What would you like to know?")).to_be_visible()


def test_messages_and_code_can_be_copied(visit):
    page = visit("member").page
    pick(page, "river")
    ask(page, "Copy me")
    answer = answers(page).last
    expect(answer.locator("[data-reading=rate]")).to_be_visible()
    answer.get_by_role("button", name="Copy code").click()
    expect(answer.get_by_role("button", name="Copied")).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()") == 'def flow():\n    return "down"'
    answer.get_by_role("button", name="Copy", exact=True).click()
    expect(answer.get_by_role("button", name="Copied")).to_have_count(2)
    assert page.evaluate("navigator.clipboard.readText()").startswith("## Rivers\n")


def test_parameters_are_sent_and_shown_as_code(visit):
    page = visit("member").page
    pick(page, "steady")
    page.get_by_role("button", name="Parameters").click()
    page.get_by_label("System prompt").fill("Be brief.")
    page.get_by_label("Max output tokens").fill("7")
    expect(page.locator("#temperature-shown")).to_have_text("model’s own")
    page.get_by_label("Temperature").fill("0.3")
    page.get_by_role("button", name="Close parameters").click()
    ask(page, "It's long?")
    answer = answers(page).last
    expect(answer).to_contain_text("reached its limit of 7 tokens")
    expect(answer.get_by_role("button", name="Continue")).to_be_visible()
    page.get_by_label("Message", exact=True).fill("more")
    page.get_by_role("button", name="View code").click()
    code = page.locator("#code")
    expect(code).to_contain_text('"max_output_tokens": 7')
    expect(code).to_contain_text('"temperature": 0.3')
    expect(code).to_contain_text("It'\\''s long?")
    page.get_by_role("button", name="Python").click()
    expect(code).to_contain_text('instructions="Be brief."')
    page.evaluate("navigator.clipboard.writeText('')")
    page.get_by_role("button", name="Copy", exact=True).last.click()
    program = page.evaluate("navigator.clipboard.readText()")
    compile(program, "code", "exec")


def test_an_error_says_what_to_do_and_carries_the_request_id(visit):
    page = visit("member").page
    pick(page, "failing")
    ask(page, "Fail")
    card = answers(page).last.locator(".card")
    expect(card).to_contain_text("The answer failed")
    expect(card.locator("code")).to_have_text(re.compile(r"^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$"))
    pick(page, "echo")
    card.get_by_role("button", name="Try again").click()
    expect(answers(page).last.locator(".prose")).to_have_text("Fail")


def test_credit_that_ends_in_mid_answer_is_offered_a_way_on(site, visit):
    page = visit("poor").page
    pick(page, "steady")
    ask(page, "Go on")
    offer = answers(page).last.locator("[data-offer=credit]")
    expect(offer).to_contain_text("Credit is used up")
    expect(offer).to_contain_text("at the last one that the credit paid for")
    expect(offer).to_contain_text("credits are left")
    expect(page.locator("a.balance")).to_have_class(re.compile("low"))
    site.script("grant", "poor", "1000000")
    offer.get_by_role("button", name="Continue the answer").click()
    expect(answers(page)).to_have_count(2)
    expect(answers(page).last.locator("[data-reading=rate]")).to_be_visible()


def test_without_credit_nothing_runs_and_the_owner_is_named(visit):
    page = visit("broke").page
    pick(page, "echo")
    ask(page, "Anybody?")
    offer = answers(page).last.locator("[data-offer=credit]")
    expect(offer).to_contain_text("Nothing was charged")
    expect(offer).to_contain_text("0 credits are left")
    expect(offer).to_contain_text("boss@empty.example")
    expect(offer.get_by_role("link", name="See usage")).to_be_visible()
    expect(offer.locator("code")).to_be_visible()


def test_a_session_that_ended_is_told(visit):
    visitor = visit("both")
    page = visitor.page
    pick(page, "echo")
    ask(page, "Hello")
    expect(answers(page).last.locator(".prose")).to_have_text("Hello")
    visitor.context.clear_cookies()
    page.reload()
    expect(page).to_have_url(re.compile("/accounts/login/"))


def test_the_tenant_is_switched_in_the_menu(visit):
    page = visit("both").page
    page.locator(".menu-button").click()
    page.get_by_role("link", name="Poor").click()
    expect(page).to_have_url(re.compile(r"\?tenant=poor$"))
    expect(page.locator(".menu-button")).to_contain_text("Poor")


def test_themes_and_narrow_windows(visit):
    page = visit("member").page
    page.locator(".menu-button").click()
    page.get_by_role("button", name="Dark").click()
    assert page.evaluate("getComputedStyle(document.documentElement).colorScheme") == "dark"
    page.reload()
    assert page.evaluate("getComputedStyle(document.documentElement).colorScheme") == "dark"
    page.set_viewport_size({"width": 390, "height": 700})
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    small = page.evaluate(
        """() => [...document.querySelectorAll("header button, header a, .toolbar button, .box button")]
          .filter((one) => one.checkVisibility() && !one.closest("[popover]") && !one.classList.contains("skip"))
          .filter((one) => one.getBoundingClientRect().height < 44).map((one) => one.outerHTML)"""
    )
    assert small == []


def test_a_lost_connection_is_told_and_comes_back(site, visit):
    visitor = visit("owner")
    page = visitor.page
    pick(page, "endless")
    ask(page, "Go on")
    expect(answers(page).last.locator(".prose")).to_contain_text("w5")
    site.stop()
    banner = page.locator("#connection")
    expect(banner).to_contain_text("The connection is lost; reconnecting")
    expect(answers(page).last).to_contain_text("The connection was lost, which ended this answer")
    site.start()
    banner.get_by_role("button", name="Try now").or_(page.locator("#connection[hidden]")).first.dispatch_event("click")
    expect(banner).to_be_hidden()
    pick(page, "echo")
    ask(page, "Back again")
    expect(answers(page).last.locator(".prose")).to_have_text("Back again")
    visitor.complaints.clear()  # the browser itself reports each refused connection

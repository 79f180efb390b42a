"""The chat page in Chromium, over a real gateway with fake engines."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

pytestmark = [pytest.mark.browser]


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
          const colours = /<span class="hljs[^>]*>|<[/]span>/g;
          const plain = (node) => node.innerHTML.replace(colours, "").replace(/\\s+/g, " ");
          return [plain(grown) === plain(whole), kept > 4, plain(grown), plain(whole)];
        }"""
    )
    assert same[:2] == [True, True], same


def test_a_reader_can_scroll_up_a_little_while_an_answer_grows(visit):
    """Within 96 pixels of the end the view was pulled back with each token."""
    page = visit("member").page
    seen = page.evaluate(
        """async () => {
          const { Transcript } = await import("/static/chat/transcript.js");
          const scroller = document.createElement("div"), inner = document.createElement("div");
          const toLatest = document.createElement("button");
          scroller.style = "height: 200px; overflow-y: auto; position: fixed; top: 0; left: 0; width: 300px";
          scroller.append(inner);
          document.body.append(scroller);
          const frames = async () => { for (let n = 0; n < 3; n += 1) await new Promise(requestAnimationFrame); };
          const turn = { id: "t", role: "assistant", content: "", state: "streaming" };
          const transcript = new Transcript(inner, scroller, toLatest, {}, { models: [1], urls: {} });
          transcript.show([turn]);
          const grow = async () => {
            turn.content += "a line\\n\\n".repeat(20);
            transcript.grow(turn);
            await frames();
          };
          const rest = () => Math.round(scroller.scrollHeight - scroller.scrollTop - scroller.clientHeight);
          await grow();
          const followed = rest();
          scroller.scrollTop -= 20;
          await frames();
          const at = scroller.scrollTop;
          await grow();
          const stayed = scroller.scrollTop === at, offered = !toLatest.hidden;
          toLatest.click();
          await frames();
          const back = [rest(), toLatest.hidden];
          await grow();
          return { followed, stayed, offered, back, again: rest() };
        }"""
    )
    assert seen == {"followed": 0, "stayed": True, "offered": True, "back": [0, True], "again": 0}


def test_what_is_selected_in_the_growing_block_stays_selected(visit):
    page = visit("member").page
    seen = page.evaluate(
        """async () => {
          const { Growing } = await import("/static/chat/markdown.js");
          const place = document.createElement("div");
          document.body.append(place);
          const frames = async () => { for (let n = 0; n < 3; n += 1) await new Promise(requestAnimationFrame); };
          const growing = new Growing(place);
          growing.grow("first words");
          await frames();
          getSelection().selectAllChildren(place.querySelector("p"));
          growing.grow("first words and more");
          await frames();
          const kept = getSelection().toString();
          growing.end("first words and more, the end");
          await frames();
          const atEnd = getSelection().toString();
          getSelection().removeAllRanges();
          await frames();
          return [kept, atEnd, place.textContent.trim()];
        }"""
    )
    assert seen == ["first words", "first words", "first words and more, the end"]


FORMULAS = (  # a text, and the formulas in it
    (r"so \(a_1 * b_2 * c\) holds", ["a_1 * b_2 * c"]),
    ("$$\n- x_1\n= y\n$$", ["- x_1\n= y"]),
    (r"\[ \frac{1}{2} \]", [r"\frac{1}{2}"]),
    ("with $x_i$ and $y_i$.", ["x_i", "y_i"]),
    ("it costs $5 and $6 or `$a$`", []),
    (r"\(\href{javascript:alert(1)}{x}\)", [r"\href{javascript:alert(1)}{x}"]),
    (r"\(\frac{1}\) is broken", []),
)


def test_formulas_are_shown_as_formulas(visit):
    """Their underscores and stars became emphasis, their brackets were lost."""
    page = visit("member").page
    page.evaluate(
        """async (texts) => {
          const { render } = await import("/static/chat/markdown.js");
          for (const [number, text] of texts.entries()) {
            const place = document.createElement("div");
            place.id = `formulas-${number}`;
            place.className = "prose";
            place.append(render(text));
            document.body.append(place);
          }
          await import("katex");
          await new Promise(requestAnimationFrame);
        }""",
        [text for text, _ in FORMULAS],
    )
    for number, (text, formulas) in enumerate(FORMULAS):
        place = page.locator(f"#formulas-{number}")
        expect(place.locator(".math"), text).to_have_count(len(formulas))
        assert [one.get_attribute("title") for one in place.locator(".math").all()] == formulas, text
        expect(place.locator(".math math"), text).to_have_count(len(formulas))
        expect(place.locator("em, a, script"), text).to_have_count(0)
        assert place.locator("[href]").count() == 0, text


TOO_LONG = {  # text that is shown as it is written, and the formula behind it as such
    "a block": "$$" + "x+" * 50_000 + "x$$",
    "a line": "so $" + "x+" * 50_000 + "x$",
    "a chain of roots": "$$" + "\\sqrt{" * 10_000 + "x" + "}" * 10_000 + "$$",
}


@pytest.mark.parametrize("what", TOO_LONG)
def test_what_is_too_long_to_be_laid_out_is_shown_as_written(visit, what):
    """A formula of 100 kB kept the tab busy for minutes."""
    page = visit("member").page
    text = TOO_LONG[what]
    shown = page.evaluate(
        """async (text) => {
          const { render } = await import("/static/chat/markdown.js");
          await import("katex");
          const place = document.createElement("div");
          place.id = "long";
          document.body.append(place);
          place.append(render(`${text}\\n\\n$a^2$`));
          return place.textContent.length;
        }""",
        text,
    )
    assert shown >= len(text.strip()) // 2
    place = page.locator("#long")
    expect(place.locator(".math")).to_have_count(1)
    assert place.locator(".math").get_attribute("title") == "a^2"


def test_many_formulas_are_shown_a_few_in_each_frame(visit):
    page = visit("member").page
    page.evaluate(
        """async () => {
          const { render } = await import("/static/chat/markdown.js");
          await import("katex");
          const place = document.createElement("div");
          place.id = "many";
          document.body.append(place);
          const formula = `$${"x+".repeat(1_000)}x$`;
          place.append(render(Array(30).fill(formula).join("\\n\\n")));
        }"""
    )
    expect(page.locator("#many .math")).to_have_count(30)


def test_a_projects_own_model_is_offered_in_that_project_alone(visit):
    page = visit("member").page
    seen = page.evaluate(
        """async () => {
          const { Settings } = await import("/static/chat/settings.js");
          const chat = { kinds: ["chat"], context_length: 9, base: "", is_ready: true };
          const model = (id, project) => ({ ...chat, id, project });
          const settings = new Settings({
            user: "somebody", tenant: "acme", projects: [{ id: "a", name: "A" }, { id: "b", name: "B" }],
            models: [model("auto", ""), model("acme/law", "a")],
          });
          const shown = () => [...document.querySelectorAll("#models input")].map((one) => one.value);
          const project = document.getElementById("project");
          const before = shown();
          settings.model = "acme/law";
          project.value = "b";
          project.dispatchEvent(new Event("input"));
          return [before, shown(), settings.model];
        }"""
    )
    assert seen == [["auto", "acme/law"], ["auto"], "auto"]


def test_a_link_is_shown_before_it_is_followed(visit):
    visitor = visit("member")
    page = visitor.page
    pick(page, "river")
    ask(page, "Tell me about rivers")
    link = answers(page).last.get_by_role("link", name="the source")
    expect(page.get_by_role("button", name="Send", exact=True)).to_be_visible()
    link.click()
    dialog = page.locator("#link-dialog")
    expect(dialog.locator("[data-address]")).to_have_text("https://example.com/river")
    dialog.get_by_role("button", name="Stay here").click()
    expect(dialog).to_be_hidden()
    assert len(visitor.context.pages) == 1
    visitor.context.route("https://example.com/**", lambda route: route.fulfill(body="there"))
    link.click()
    with visitor.context.expect_page() as there:
        dialog.get_by_role("button", name="Open in a new tab").click()
    assert there.value.url == "https://example.com/river"
    assert there.value.evaluate("window.opener") is None


def test_enter_makes_a_line_where_fingers_type(visit):
    page = visit("member", is_mobile=True, has_touch=True).page
    message = page.get_by_label("Message", exact=True)
    message.fill("one")
    page.keyboard.press("Enter")
    page.keyboard.type("two")
    expect(message).to_have_value("one\ntwo")
    page.get_by_role("button", name="Send", exact=True).click()
    expect(page.locator(".bubble").last).to_have_text("one\ntwo")


def test_auto_explains_who_was_passed_over(visit):
    page = visit("member").page
    pick(page, "auto")
    ask(page, "Which one?")
    answer = answers(page).last
    expect(answer.locator(".meter .model")).to_be_visible()
    page.keyboard.press("Escape")
    answer.get_by_text("Why this model?").click()
    expect(answer.locator(".route-body .chosen")).to_have_count(1)


def test_a_sample_ticket_is_filled_in_and_its_fields_are_shown_as_code(visit):
    page = visit("member").page
    message = page.get_by_label("Message", exact=True)
    message.fill("typed before")
    samples = page.locator("#transcript").get_by_role("button", name=re.compile("ticket"))
    expect(samples).to_have_text(["Label a support ticket …", "Take a ticket’s fields as JSON …"])
    samples.last.focus()
    page.keyboard.press("Enter")
    expect(message).to_be_focused()
    expect(message).to_have_value(re.compile(r"^Extract these fields .* as JSON: .*\n\nHello,", re.DOTALL))
    page.keyboard.press("Control+z")
    expect(message).to_have_value("typed before")
    page.keyboard.press("Control+Shift+z")
    pick(page, "fields")
    message.press("Enter")
    answer = answers(page).last
    laid_out = '{\n  "order": "*4810376*",\n  "number": 12345678901234567890,\n  "phone": null\n}'
    expect(answer.locator(".code code.language-json")).to_have_text(laid_out)
    expect(answer.get_by_role("button", name="Regenerate")).to_be_visible()
    expect(samples).to_have_count(0)
    page.reload()
    expect(answers(page).last.locator(".code code.language-json")).to_have_text(laid_out)


def test_a_sample_ticket_is_labelled_by_a_classifier(visit):
    page = visit("member").page
    page.get_by_role("button", name="Label a support ticket").click()
    page.locator("#model-button").click()
    choice = page.locator(".model-choice", has=page.locator("[value=sorter]"))
    expect(choice).to_contain_text("answers with a label")
    choice.click()
    page.get_by_label("Message", exact=True).press("Enter")
    expect(answers(page).last.get_by_role("button", name="Regenerate")).to_be_visible()
    label = answers(page).last.locator(".prose").inner_text()
    assert label in page.locator(".bubble").inner_text().split("labels: ")[1].split(".")[0].split(", ")


def test_json_stays_one_block_while_it_grows_and_prose_is_no_json(visit):
    page = visit("member").page
    seen = page.evaluate(
        """async () => {
          const { Growing } = await import("/static/chat/markdown.js");
          const shown = [];
          for (const text of ['{\\n\\n"a": {"b": []}}', '{"a": 1} is *it*', '{"cut": "ht', '[[1], {"x": "{,"}]', "5"]) {
            const place = document.createElement("div");
            const growing = new Growing(place);
            for (let length = 1; length <= text.length; length += 1) {
              growing.grow(text.slice(0, length));
              await new Promise(requestAnimationFrame);
            }
            const grown = place.querySelectorAll("code.language-json").length;
            growing.end(text);
            shown.push([grown, place.querySelector("code.language-json")?.textContent ?? place.textContent.trim()]);
          }
          return shown;
        }"""
    )
    assert seen == [
        [1, '{\n  "a": {\n    "b": []\n  }\n}'],
        [1, '{"a": 1} is it'],
        [1, '{"cut": "ht'],
        [0, '[\n  [\n    1\n  ],\n  {\n    "x": "{,"\n  }\n]'],
        [0, "5"],
    ]


@pytest.mark.parametrize("size", [1_200_000, 2_400_000])
def test_a_ticket_that_is_too_long_is_told_as_such(visit, size):
    """It isn't sent: from twice the bound on the server closes the socket without a word, as a lost connection."""
    page = visit("member").page
    page.get_by_label("Message", exact=True).evaluate("(area, size) => { area.value = 'word '.repeat(size / 5) }", size)
    page.get_by_label("Message", exact=True).press("Enter")
    expect(answers(page).last).to_contain_text("The conversation is too long")
    expect(page.get_by_role("button", name="Send", exact=True)).to_be_visible()
    assert page.locator(".bubble").evaluate("(bubble) => bubble.clientHeight <= innerHeight")


def test_every_step_of_a_choice_is_told_and_nothing_in_it_runs(visit):
    page = visit("member").page
    hostile = '<img src=x onerror="window.broken=1">'
    told = page.evaluate(
        """async (hostile) => {
          const { routeDetails } = await import("/static/chat/meter.js");
          const details = routeDetails({
            reason: hostile, task: "extract", task_source: "examples", rule: hostile,
            signals: [
              { step: "field", outcome: "passed", value: "the request doesn't say its task" },
              { step: "examples", outcome: "decided", value: "91 % similar",
                similarities: [{ rule: hostile, similarity: 0.912 }, { rule: "talk", similarity: -0.01 }] },
              { step: "plan", outcome: "skipped", value: "the task was known before" },
              { step: "conversation", outcome: "decided", value: "it keeps desk" },
              { step: "ceiling", outcome: "decided", value: "the cheapest" },
            ],
            candidates: [{ model: hostile, deployment: "d", rejected: "not ready" }, { model: "desk" }],
          });
          document.querySelector("main").append(details);
          details.open = true;
          return [...details.querySelectorAll(".steps li")].map((one) => one.textContent);
        }""",
        hostile,
    )
    assert told == [
        "Request’s task field: the request doesn't say its task · passed",
        f"Nearest example: 91 % similar · decidedBy rule: {hostile} 91.2 % · talk -1.0 %",
        "Conversation: it keeps desk · decided",
        "Ceiling: the cheapest · decided",
    ]
    expect(page.locator("details.route img")).to_have_count(0)
    assert page.evaluate("window.broken") is None


def test_scripts_in_an_answer_are_inert(visit):
    visitor = visit("member")
    page = visitor.page
    asked_for = []
    page.on("request", lambda request: asked_for.append(request.url))
    pick(page, "evil")
    ask(page, '<img src=x onerror="window.broken=1"><script>window.broken=1</script>')
    answer = answers(page).last
    expect(answer.get_by_role("button", name="Regenerate")).to_be_visible()  # it has ended
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
    expect(page.get_by_role("button", name="Send", exact=True)).to_be_visible()
    ask(page, "second words")
    expect(answers(page)).to_have_count(2)
    expect(answers(page).last.locator("[data-reading=credits]")).to_be_visible()
    expect(page.get_by_role("button", name="Send", exact=True)).to_be_visible()
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


def test_an_answer_goes_on_after_a_reload(visit):
    page = visit("member").page
    pick(page, "slow")
    ask(page, "Count")
    answer = answers(page).last
    expect(answer.locator(".prose")).to_contain_text("w3")
    page.reload()
    expect(page.locator("#stop")).to_be_visible()
    expect(answer.locator(".prose")).to_contain_text("w40")
    expect(page.locator("#live")).to_have_text("Answer finished.")
    assert answer.locator(".prose").inner_text().split() == [f"w{number}" for number in range(1, 41)]
    expect(answer.locator("[data-reading=credits]")).to_be_visible()
    expect(page.locator("#stop")).to_be_hidden()


def test_what_the_model_thought_is_folded_above_its_answer(visit):
    page = visit("member").page
    pick(page, "thinker")
    ask(page, "Well?")
    answer = answers(page).last
    expect(answer.locator(".prose")).to_have_text("Yes.")
    answer.get_by_text("Thought", exact=True).click()
    expect(answer.locator(".thought p")).to_contain_text("Let me see.")
    page.reload()
    expect(answers(page).last.locator(".thought summary")).to_have_text("Thought")


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
    page.wait_for_function("navigator.clipboard.readText().then((text) => text !== '')")
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


def test_what_we_broke_is_waived_and_a_charge_that_is_pending_is_called_so(visit):
    page = visit("member").page
    pick(page, "broken")
    ask(page, "Break")
    answer = answers(page).last
    expect(answer.locator(".card")).to_contain_text("Nothing is charged for it: it failed on our side.")
    expect(answer.locator("[data-reading=credits]")).to_have_text("waived")
    pending = page.evaluate(
        """async () => {
            const { readings } = await import("/static/chat/meter.js");
            const usage = { input_tokens: 3, output_tokens: 2, credits_micro: null, settlement: "pending" };
            return readings({ usage });
        }"""
    )
    assert ["credits", "charge pending"] in pending


def test_credit_that_ends_in_mid_answer_is_offered_a_way_on(site, visit):
    page = visit("poor").page
    pick(page, "steady")
    ask(page, "Go on")
    offer = answers(page).last.locator("[data-offer=credit]")
    expect(offer).to_contain_text("Credit is used up")
    expect(offer).to_contain_text("at the last one that the credit paid for")
    expect(offer).to_contain_text("credits are left")
    expect(page.locator("a.balance")).to_have_class(re.compile("low"))
    site.inside.ask("tests.browser.seed:grant", "poor", 1_000_000)
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
    visitor.complaints.clear()  # of a page that asked for its credit without the session


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
    site.start()
    banner.get_by_role("button", name="Try now").or_(page.locator("#connection[hidden]")).first.dispatch_event("click")
    expect(banner).to_be_hidden()
    expect(answers(page).last).to_contain_text("The connection was lost, which ended this answer")
    pick(page, "echo")
    ask(page, "Back again")
    expect(answers(page).last.locator(".prose")).to_have_text("Back again")
    visitor.complaints.clear()  # the browser itself reports each refused connection

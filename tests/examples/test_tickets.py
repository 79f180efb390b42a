"""The example's program, whose SDK reaches a server that stands in its transport."""

from __future__ import annotations

import csv
import json
from functools import partial

import httpx2
import openai
import pytest

from examples import tickets as program

TRUTH = {
    "1": ("billing", {"name": "Ada Byron", "order": "#7"}),
    "2": ("refund", {"email": "ada@example.org"}),
    "3": ("other", {}),
    "4": ("sales", {"product": "kettle"}),
}
CHARGE = 1_500


class Server:
    """Answers chat completions by what a ticket's text says, and batches at the second look."""

    def __init__(self):
        self.asked: list[dict] = []
        self.refused: dict[str, tuple[int, str]] = {}
        self.charge: int | None = CHARGE
        self.cut_off = ""
        self.files: dict[str, bytes] = {}
        self.made = self.looks = 0

    def __call__(self, request):
        path, body = request.url.path.removeprefix("/v1"), request.content
        match path.split("/")[1:]:
            case ["chat", "completions"]:
                status, answer = self.chat(json.loads(body))
                return httpx2.Response(status, json=answer, headers={"x-should-retry": "false"})
            case ["files"]:
                self.files["file-in"] = body.split(b"\r\n\r\n")[-1].split(b"\r\n--")[0]
                return httpx2.Response(200, json={"id": "file-in", "object": "file"})
            case ["files", name, "content"]:
                return httpx2.Response(200, content=self.files[name])
            case ["batches", *_]:
                return httpx2.Response(200, json=self.batch(is_made=request.method == "POST"))
        raise AssertionError(path)

    async def later(self, request):
        return self(request)

    def chat(self, body):
        self.asked.append(body)
        number = body["messages"][0]["content"].rpartition(" ")[2]
        if number in self.refused:
            status, message = self.refused[number]
            return status, {"error": {"message": message}}
        label, fields = TRUTH[number]
        text = label if "structured_outputs" in body else json.dumps(dict.fromkeys(program.FIELDS) | fields)
        text = text[:9] if number == self.cut_off else text
        answer = {
            "id": f"chatcmpl-{number}",
            "object": "chat.completion",
            "created": 1,
            "model": body["model"],
            "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}],
            "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2, "credits_micro": self.charge},
        }
        return 200, answer

    def batch(self, *, is_made):
        self.made += is_made
        self.looks = 0 if is_made else self.looks + 1
        batch = {
            "id": "batch_1",
            "object": "batch",
            "endpoint": program.CHAT,
            "input_file_id": "file-in",
            "completion_window": "24h",
            "created_at": 100,
            "status": "in_progress" if self.looks < 2 else "completed",
            "request_counts": {"total": 8, "completed": 0, "failed": 0},
        }
        if self.looks == 2:
            self.run()
        if self.looks >= 2:
            batch |= {"completed_at": 142, "output_file_id": "file-out", "error_file_id": "file-errors"}
        return batch

    def run(self):
        """Write the files of a batch."""
        self.files |= {"file-out": b"", "file-errors": b""}
        for line in map(json.loads, self.files["file-in"].splitlines()):
            status, body = self.chat(line["body"])
            response = {"status_code": status, "request_id": "r", "body": body}
            file = "file-out" if status == 200 else "file-errors"
            result = {"id": "x", "custom_id": line["custom_id"], "response": response, "error": None}
            self.files[file] += json.dumps(result).encode() + b"\n"


@pytest.fixture
def server(monkeypatch):
    made = Server()

    def client(kind, http, handler, **options):
        return kind(http_client=http(transport=httpx2.MockTransport(handler)), **options)

    monkeypatch.setattr(program, "OpenAI", partial(client, openai.OpenAI, httpx2.Client, made))
    monkeypatch.setattr(program, "AsyncOpenAI", partial(client, openai.AsyncOpenAI, httpx2.AsyncClient, made.later))
    return made


@pytest.fixture
def run(monkeypatch, tmp_path, capsys):
    """Run the program over the tickets of TRUTH; return how it ended and what it said."""
    with (tmp_path / "tickets.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("id", "ticket", "label", *program.FIELDS))
        for number, (label, fields) in TRUTH.items():
            writer.writerow((number, f"It concerns\nmatter {number}", label, *map(fields.get, program.FIELDS)))

    def run(*options):
        files = ("--tickets", str(tmp_path / "tickets.csv"), "--out", str(tmp_path / "answers.csv"))
        monkeypatch.setattr("sys.argv", ["tickets.py", "--key", "k", "--poll", "0", *files, *options])
        code = None
        try:
            program.main()
        except SystemExit as stopped:
            code = stopped.code
        return code, capsys.readouterr().err

    return run


def answers(tmp_path):
    with (tmp_path / "answers.csv").open(newline="") as file:
        return {row["id"]: row for row in csv.DictReader(file)}


@pytest.mark.parametrize("way", [(), ("--workers", "1"), ("--batch",)])
def test_each_ticket_is_asked_about_twice_and_its_answers_are_judged(server, run, tmp_path, way):
    code, said = run(*way)
    assert code is None
    assert "4 of 4 tickets, 0.012000 credits, 4 of them now" in said
    assert "100.0% of the labels; right: 100.0% of the JSON" in said
    assert len(server.asked) == 8
    assert {name: row["label"] for name, row in answers(tmp_path).items()} == {
        n: label for n, (label, _) in TRUTH.items()
    }
    assert answers(tmp_path)["1"]["order"] == "#7"
    assert answers(tmp_path)["1"]["email"] == ""


def test_requests_name_models_tasks_and_what_answers_are_held_to(server, run):
    run("--count", "1", "--labels", "auto")
    label, fields = server.asked
    assert (label["model"], fields["model"]) == ("auto", "sluice-desk")
    assert [body["metadata"]["sluice_task"] for body in server.asked] == ["classify", "extract"]
    assert label["structured_outputs"] == {"choice": list(program.LABELS)}
    assert fields["response_format"]["json_schema"]["schema"]["required"] == list(program.FIELDS)


def test_a_second_run_asks_about_what_is_missing(server, run, tmp_path):
    server.refused["3"] = (402, "no credit is left")
    code, said = run("--workers", "1")
    assert "no credit is left" in code
    assert "2 of 4 tickets" in said
    server.asked.clear()
    server.refused.clear()
    code, said = run("--workers", "1")
    assert code is None
    assert "4 of 4 tickets, 0.012000 credits, 2 of them now" in said
    assert len(server.asked) == 4
    assert list(answers(tmp_path)) == list(TRUTH)


def test_what_a_batch_refuses_is_asked_again(server, run, tmp_path):
    server.refused["2"] = (400, "too long")
    code, said = run("--batch")
    assert code == "batch_1 is completed, with 2 errors; the first: too long"
    assert "3 of 4 tickets" in said
    assert "in 42 s" in said
    server.refused.clear()
    code, said = run("--batch")
    assert code is None
    assert "4 of 4 tickets" in said


def test_a_batch_goes_on_without_its_program(server, run, tmp_path, monkeypatch):
    def interrupt(seconds):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(program.time, "sleep", interrupt)
        code, said = run("--batch")
    assert code.startswith("stopped")
    assert "0 of 4 tickets" in said
    code, said = run("--batch")
    assert code is None
    assert "4 of 4 tickets" in said
    assert server.made == 1


def test_answers_that_are_wrong_or_cut_off_count_as_wrong(server, run, tmp_path, monkeypatch):
    monkeypatch.setitem(TRUTH, "4", ("refund", {"product": "kettle"}))
    server.cut_off = "3"
    _, said = run()
    assert "right: 75.0% of the labels; right: 75.0% of the JSON" in said
    assert answers(tmp_path)["3"]["name"] == "?"


def test_a_charge_that_is_pending_is_told(server, run):
    server.charge = None
    _, said = run()
    assert "0.000000 credits without 4 that aren't settled yet" in said


def test_another_file_is_no_file_of_answers(server, run, tmp_path):
    code, _ = run("--out", str(tmp_path / "tickets.csv"))
    assert "row 1 needs id, label" in code
    assert not server.asked

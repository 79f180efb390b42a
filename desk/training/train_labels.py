"""Train the head that chooses labels, with low-rank pairs in its encoder.

    python -m desk.training.train_labels --model FOLDER --out FOLDER --steps 1500

Repeatable from `--seed` on one machine; run again with the same `--out` it goes on where it was. With `--seconds` the
learning rate has fallen to nothing after that time, whatever the steps until then. `--rank 0` leaves the encoder as it
is. `--split fit` leaves out what `dev` is made of, for choices between ways of training.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from random import Random

import torch
from safetensors.torch import save_file
from torch import nn
from transformers import AutoModel, AutoTokenizer

from desk.training import lora
from desk.training.corpus import Example
from desk.training.course import Course, numbered, rate
from desk.training.generators import GENERATORS, in_turn
from desk.training.texts import OTHER, Split, labels
from inference.architectures.label_head import LabelHead

TARGETS = ("query", "key", "value", "dense")
LONGEST = 256
RISE, FALL = 50, 0.5
LOGGED = 25


def classified(split: Split, seed: int | str, generators: Sequence[str] = tuple(GENERATORS)) -> Iterator[Example]:
    """Yield questions for labels, without end."""
    stream = in_turn(split, Random(f"labels {split} {seed}").randrange(2**62), generators)
    return (example for example in stream if example.task == "classify")


class Labeller(nn.Module):
    """An encoder with mean pooling, and the head."""

    def __init__(self, folder: str, rank: int, projected: int, device: torch.device) -> None:
        super().__init__()
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.encoder = AutoModel.from_pretrained(folder, add_pooling_layer=False, dtype=torch.float32).to(device).eval()
        self.encoder.requires_grad_(False)
        self.pairs = lora.adapt(self.encoder, TARGETS, rank, 2.0 * rank) if rank else {}
        self.head = LabelHead(self.encoder.config.hidden_size, projected).to(device)
        with torch.no_grad():
            for layer in (self.head.text, self.head.label):
                nn.init.eye_(layer.weight)
        self.device = device

    def pooled(self, texts: Sequence[str]) -> torch.Tensor:
        """Return the mean of each text's hidden states."""
        given = self.tokenizer(list(texts), padding=True, truncation=True, max_length=LONGEST, return_tensors="pt")
        mask = given["attention_mask"].to(self.device)
        with torch.autocast(self.device.type, torch.bfloat16):
            hidden = self.encoder(input_ids=given["input_ids"].to(self.device), attention_mask=mask).last_hidden_state
        weights = mask[..., None].float()
        mean: torch.Tensor = (hidden.float() * weights).sum(1) / weights.sum(1)
        return mean

    def forward(self, examples: Sequence[Example]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return logits over all label names of these examples and `other`, and the numbers of the right ones.

        Names that an example wasn't offered are -inf.
        """
        names = sorted({name for example in examples for name in example.choices if name != OTHER})
        place = {name: number for number, name in enumerate((*names, OTHER))}
        logits = self.head(self.pooled([one.ticket.text for one in examples]), self.head.project(self.pooled(names)))
        offered = torch.full(logits.shape, float("-inf"))
        wanted = []
        for row, example in enumerate(examples):
            offered[row, [place[name] for name in example.choices]] = 0.0
            wanted.append(place[example.answer])
        return logits + offered.to(self.device), torch.tensor(wanted, device=self.device)


@torch.no_grad()
def accuracy(model: Labeller, examples: Sequence[Example]) -> float:
    right = 0
    for start in range(0, len(examples), 32):
        logits, wanted = model(examples[start : start + 32])
        right += int((logits.argmax(-1) == wanted).sum())
    return right / len(examples)


def train(options: argparse.Namespace) -> None:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(options.seed)
    model = Labeller(options.model, options.rank, options.width, device)
    low = [one for pair in model.pairs.values() for one in (pair.lora_A, pair.lora_B)]
    optimizer = torch.optim.AdamW([*model.head.parameters(), *low], lr=options.rate, weight_decay=0.01)
    out = Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    step, seconds = _resume(out, model, optimizer)
    dev = list(islice(classified("dev", 0, options.generators), 600)) if options.split == "fit" else []

    def batch(number: int) -> list[Example]:
        return list(islice(classified(options.split, f"{options.seed} {number}", options.generators), options.batch))

    drawn = numbered(batch, step, options.workers)
    course = Course(out, step, seconds, [options.steps], options.seconds)
    losses: list[torch.Tensor] = []
    while (share := course.share) < 1.0:
        for group in optimizer.param_groups:
            group["lr"] = rate(course.step, share, options.rate, rise=RISE, fall=FALL)
        logits, wanted = model(next(drawn))
        loss = nn.functional.cross_entropy(logits, wanted)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_([*low, *model.head.parameters()], 1.0)
        optimizer.step()
        losses.append(loss.detach())
        course.step += 1
        is_last = course.share == 1.0
        if course.step % LOGGED == 0 or is_last:
            line = {"examples": course.step * options.batch, "loss": round(float(sum(losses)) / len(losses), 4)}
            if dev and (course.step % (4 * LOGGED) == 0 or is_last):
                line["dev"] = round(accuracy(model, dev), 4)
            course.tell(**line)
            losses = []
        if course.is_due():
            _save(course, model, low, optimizer)
    _save(course, model, low, optimizer)
    if model.pairs:
        lora.save(out / "head", model.pairs, base=options.name, task="FEATURE_EXTRACTION", dtype=torch.bfloat16)
    (out / "head").mkdir(exist_ok=True)
    head = {name: one.detach().to("cpu", torch.bfloat16) for name, one in model.head.state_dict().items()}
    save_file(head, out / "head" / "label_head.safetensors")
    stated = {"labels": list(labels()), "none": OTHER}
    (out / "head" / "label_head.json").write_text(json.dumps(stated, indent=2) + "\n")


def _save(course: Course, model: Labeller, low: Sequence[nn.Parameter], optimizer: torch.optim.Optimizer) -> None:
    """Write what going on needs, whole or not at all."""
    state = {
        "step": course.step,
        "seconds": course.seconds,
        "head": model.head.state_dict(),
        "pairs": [one.detach() for one in low],
        "optimizer": optimizer.state_dict(),
    }
    torch.save(state, course.out / "state.pt.new")
    (course.out / "state.pt.new").replace(course.out / "state.pt")


def _resume(out: Path, model: Labeller, optimizer: torch.optim.Optimizer) -> tuple[int, float]:
    """Return the step and the seconds that were reached in `out`, and take up their state; 0 where there is none."""
    if not (out / "state.pt").is_file():
        return 0, 0.0
    state = torch.load(out / "state.pt", weights_only=True)
    model.head.load_state_dict(state["head"])
    low = [one for pair in model.pairs.values() for one in (pair.lora_A, pair.lora_B)]
    with torch.no_grad():
        for one, number in zip(low, state["pairs"], strict=True):
            one.copy_(number)
    optimizer.load_state_dict(state["optimizer"])
    return state["step"], state["seconds"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="the folder of all-MiniLM-L6-v2")
    parser.add_argument("--name", default="sentence-transformers/all-MiniLM-L6-v2")
    parser.add_argument("--out", required=True, help="where check-points, the curve and the head go")
    parser.add_argument("--split", choices=("train", "fit"), default="train")
    parser.add_argument("--generators", nargs="+", choices=tuple(GENERATORS), default=list(GENERATORS))
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--seconds", type=float, help="train for so long instead, on a way that ends with this time")
    parser.add_argument("--batch", type=int, default=24)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=0, help="how many processes make the batches; 0: the training's")
    train(parser.parse_args())


if __name__ == "__main__":
    main()

"""One dataset's prompts, answered by the target: responses/<ds>/ from prepared/<ds>/prompts.jsonl.

Every answer goes to a journal as it comes, under the prompt's id, in a file that is named after target, sampling and
template. A run that was killed asks only what the journal lacks; a prompt that was mended upstream has
another id and is asked; other sampling starts another journal, and the old one stays. The result
is published when every prompt has its one record or its counted reason.
"""

import hashlib
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import orjson

from eyas.chat import Chat, NotRenderable
from eyas.config import Generation, Target
from eyas.errors import EyasError
from eyas.journal import Journal
from eyas.ledger import Ledger, length_statistics
from eyas.progress import Progress
from eyas.records import RECORD_FILES, fault_in_prompt, whole_file, write_json
from eyas.target.engine import Answer, Engine, Request, identity_of

PROMPTS_AT_ONCE = 64  # encoded in one call of the tokenizer
COUNTERS_EVERY_S = 5.0
COUNTERS = "progress.json"  # beside the journals
# What the answers do not depend on: a change makes no new journal and nothing stale.
NOT_IN_FINGERPRINT = {"concurrency", "tries", "max_failed", "keep_cut"}


def generate_responses(
    settings: dict,
    prompts: Path,
    chat: Chat,
    open_engine: Callable[[], AbstractContextManager[Engine]],
    journals: Path,
    out: Path,
) -> dict:
    """Write out/{tokenized_data,rejects}.jsonl and stats.json; returns the statistics.

    settings: config.Config.generate_settings. open_engine: called when there is something to ask, not before: what the
    journal holds is published without a server. journals: folder of this dataset's journals and counters.
    EyasError when a line of `prompts` is damaged, nothing was answered, or more than max_failed were set aside.
    """
    started = time.monotonic()
    dataset, sampling = settings["dataset"], Generation.model_validate(settings["sampling"])
    identity = fingerprint(settings, chat)
    write_json(journals / f"{short(identity)}.json", identity)
    with Journal(journals / f"{short(identity)}.jsonl") as journal:
        asking = Asking(dataset, prompts, chat, sampling, journal, journals / COUNTERS)
        asking.run(open_engine)
        stats = _publish(settings, sampling, asking, journal, chat, out, identity, time.monotonic() - started)
    return stats


def fingerprint(settings: dict, chat: Chat) -> dict:
    """What decides the answers: the target, the sampling, the template."""
    sampling = {k: v for k, v in settings["sampling"].items() if k not in NOT_IN_FINGERPRINT}
    if sampling["temperature"] == 0:
        sampling = {k: v for k, v in sampling.items() if k not in ("top_p", "seed")}
    target = Target.model_validate(settings["target"])
    template = {"tokenizer": chat.fingerprint, "chat_format": target.chat_format}
    return {"target": identity_of(target), "sampling": sampling, "template": template}


def short(identity: dict) -> str:
    """12 hex digits of a fingerprint."""
    return hashlib.sha256(orjson.dumps(identity, option=orjson.OPT_SORT_KEYS)).hexdigest()[:12]


@dataclass
class Asking:
    """Asks what the journal lacks, and counts."""

    dataset: str
    prompts: Path
    chat: Chat
    sampling: Generation
    journal: Journal
    counters: Path
    ids: list[str] = field(default_factory=list)  # of all prompts, in order
    failed: dict[str, str] = field(default_factory=dict)  # id → why; not in the journal: a rerun asks again
    inputs: dict[str, list[int]] = field(default_factory=dict)  # of what is in flight
    tokens: int = 0  # that were answered here, not before

    def run(self, open_engine: Callable[[], AbstractContextManager[Engine]]) -> None:
        self.ids = [prompt["id"] for prompt in self._prompts()]
        if len(set(self.ids)) != len(self.ids):
            raise EyasError(f"{self.prompts}: ids are repeated: run `snakemake --force {self.prompts}`")
        known = sum(i in self.journal for i in self.ids)
        logging.info("%s: %s prompts, %s answered before", self.dataset, f"{len(self.ids):,}", f"{known:,}")
        if known < len(self.ids):
            with open_engine() as engine:
                self._ask(engine, known)

    def _ask(self, engine: Engine, known: int) -> None:
        done, told = known, 0.0
        progress = Progress(self.dataset, "answers")
        for result in engine.generate(self._requests(), self.sampling):
            input_ids = self.inputs.pop(result.id)
            if isinstance(result, Answer):
                self.tokens += len(result.output_ids)
                self.journal.append(
                    {
                        "id": result.id,
                        "input_ids": input_ids,
                        "output_ids": result.output_ids,
                        "finish_reason": result.finish_reason,
                        "seconds": round(result.seconds, 3),
                    }
                )
            elif result.reason == "failed":
                self.failed[result.id] = result.detail
                logging.warning("%s: prompt %s is set aside: %s", self.dataset, result.id, result.detail)
            else:
                self.journal.append({"id": result.id, "reason": result.reason, "detail": result.detail})
            done += 1
            seconds = time.monotonic() - progress.start
            note = f"{self.tokens / max(seconds, 1e-9):,.0f} tokens/s, {len(self.ids) - done:,} left"
            # The share of this run: what was answered before says nothing about the time left.
            progress.update(done - known, (done - known) / max(1, len(self.ids) - known), note)
            if time.monotonic() - told > COUNTERS_EVERY_S:
                told = time.monotonic()
                self._tell(done, known, seconds)
        self._tell(len(self.ids), known, time.monotonic() - progress.start)
        progress.close()

    def _tell(self, done: int, known: int, seconds: float) -> None:
        """Live counters, for the report and for people."""
        rate, left = (done - known) / max(seconds, 1e-9), len(self.ids) - done
        counters = {
            "dataset": self.dataset,
            "done": done,
            "left": left,
            "failed": len(self.failed),
            "answer_tokens": self.tokens,
            "tokens_per_s": round(self.tokens / max(seconds, 1e-9), 1),
            "seconds_left": round(left / rate) if rate else None,
            "updated": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        }
        write_json(self.counters, counters, durable=False)

    def _prompts(self) -> Iterator[dict]:
        with open(self.prompts, "rb") as file:
            for number, line in enumerate(file, start=1):
                if line.isspace():
                    continue
                if fault := fault_in_prompt(line, self.dataset):
                    raise EyasError(
                        f"{self.prompts}, line {number}: {fault}: run `snakemake --force {self.prompts}` to rebuild it"
                    )
                yield orjson.loads(line)

    def _requests(self) -> Iterator[Request]:
        """The prompts that the journal lacks, rendered and tokenized as they are needed."""
        waiting: list[tuple] = []
        for prompt in self._prompts():
            if prompt["id"] in self.journal:
                continue
            try:
                plan = self.chat.format.prompt(prompt["messages"], prompt.get("tools"), self.sampling.thinking)
            except NotRenderable as error:
                self.journal.append({"id": prompt["id"], "reason": error.reason, "detail": error.detail})
                continue
            waiting.append((prompt["id"], plan))
            if len(waiting) == PROMPTS_AT_ONCE:
                yield from self._encoded(waiting)
                waiting = []
        yield from self._encoded(waiting)

    def _encoded(self, waiting: list[tuple]) -> Iterator[Request]:
        encoded = self.chat.encode([plan for _, plan in waiting])
        for (key, _), (input_ids, _) in zip(waiting, encoded, strict=True):
            self.inputs[key] = input_ids
            yield Request(key, input_ids)


def _publish(settings, sampling, asking: Asking, journal: Journal, chat: Chat, out: Path, identity, seconds) -> dict:
    dataset = settings["dataset"]
    ledger, lengths, finished = Ledger(), [], {"stop": 0, "length": 0}
    answers: list[int] = []  # their lengths
    with ExitStack() as files:
        records = files.enter_context(whole_file(out / RECORD_FILES["tokenized_data"]))
        write_stats = files.enter_context(whole_file(out / "stats.json"))
        ledger.file = files.enter_context(whole_file(out / "rejects.jsonl"))
        rows = {key: n for n, key in enumerate(asking.ids, start=1)}
        ledger.rows_read = len(rows)
        for item in journal.items(asking.ids):
            where = {"file": asking.prompts.name, "row": rows.pop(item["id"]), "id": item["id"]}
            turned_down = _turned_down(item, sampling, chat)
            if turned_down:
                reason, detail = turned_down
                ledger.reject(reason, where, detail, is_filter=reason == "cut_by_length")
                continue
            record = _record(dataset, item)
            records.write(orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE))
            finished[item["finish_reason"]] += 1
            lengths.append(len(record["input_ids"]))
            answers.append(len(item["output_ids"]))
        for key, row in rows.items():
            where = {"file": asking.prompts.name, "row": row, "id": key}
            ledger.reject("failed", where, asking.failed.get(key, "no answer came"))
        stats = {
            "dataset": dataset,
            "produces": "tokenized_data",
            "rows_read": ledger.rows_read,
            "kept": len(lengths),
            "rejected": ledger.rejected,
            "duplicates": 0,
            "beyond_cap": 0,
            "reasons": dict(ledger.reasons.most_common()),
            "filters": sorted(ledger.filters),
            "rejects_listed": ledger.listed,
            "finished": finished,
            "trainable_tokens": sum(answers),
            **length_statistics(lengths),
            "answers": length_statistics(answers),
            "asked_tokens": asking.tokens,  # in these seconds
            "files": [asking.prompts.name],
            "tokenizer": chat.fingerprint,
            "vocabulary": chat.vocabulary,
            "fingerprint": identity,
            "settings": settings,
            "seconds": round(seconds, 2),
        }
        _check(settings, ledger, asking, stats)
        write_stats.write(orjson.dumps(stats, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
    return stats


def _turned_down(item: dict, sampling: Generation, chat: Chat) -> tuple[str, str] | None:
    """(reason, detail) when a journaled item becomes no record."""
    if "reason" in item:
        return item["reason"], item["detail"]
    words = item["output_ids"][:-1] if item["finish_reason"] == "stop" else item["output_ids"]
    if not words:
        return "empty_answer", "the target ended its turn at once"
    if max(item["output_ids"]) >= chat.vocabulary or min(item["output_ids"]) < 0:
        return "outside_vocabulary", f"a token id beyond the vocabulary of {chat.vocabulary:,}"
    if item["finish_reason"] == "length" and not sampling.keep_cut:
        return "cut_by_length", f"cut after {len(item['output_ids']):,} tokens"
    return None


def _record(dataset: str, item: dict) -> dict:
    asked, said = item["input_ids"], item["output_ids"]
    return {
        "id": item["id"],
        "dataset": dataset,
        "input_ids": asked + said,
        "loss_mask": [0] * len(asked) + [1] * len(said),
        "meta": {
            "finish_reason": item["finish_reason"],
            "prompt_tokens": len(asked),
            "answer_tokens": len(said),
            "seconds": item["seconds"],
        },
    }


def _check(settings: dict, ledger: Ledger, asking: Asking, stats: dict) -> None:
    name, limit = settings["dataset"], settings["sampling"]["max_failed"]
    if stats["kept"] == 0:
        raise EyasError(f"{name}: none of {ledger.rows_read:,} prompts has an answer:\n{ledger.top_reasons()}")
    set_aside = ledger.reasons["failed"]
    if set_aside > limit * ledger.rows_read:
        raise EyasError(
            f"{name}: {set_aside:,} of {ledger.rows_read:,} prompts failed, the limit is {limit:.1%}; "
            f"what was answered is in the journal, and a rerun asks only the rest:\n{ledger.top_reasons()}"
        )
    logging.info("%s: %s answers, %s tokens", name, f"{stats['kept']:,}", f"{stats['trainable_tokens']:,}")

"""Cases from outside, replayed: each constraint is compiled, each output must be taken or refused.

Comes in: the files of ``../shared/data`` (read where they are; nothing of them is kept here). Goes out:
:class:`Result` s, and the ratchet files ``tests/ratchets/NAME.json``: what is known to be refused or wrong,
by id, so that a worse result fails a test and a better one must be recorded
(``tests/tools/replay.py NAME --update``).

An output counts as accepted only if each of its bytes is allowed in turn and a stop token after the last.
"""

from __future__ import annotations

import json
import lzma
import random
import re
import signal
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from vllm_guided.errors import GrammarError, InvalidConstraint

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT.parent / "shared" / "data"
RATCHETS = ROOT / "tests" / "ratchets"

QUOTED = r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\""""

# From harmless to worst; a case's status may only move to the left.
STATUSES = ("pass", "refused", "false_reject", "wrong_error", "false_accept", "slow", "crash")


@dataclass(frozen=True)
class Case:
    """A constraint with outputs it must take and outputs it must refuse."""

    id: str
    kind: str
    constraint: Any
    accept: tuple[str, ...] = ()
    reject: tuple[str, ...] = ()
    # Whether the constraint "must" be refused, "may" be, or should not be ("no").
    error: str = "no"
    # What the kind's compile method is called with besides.
    options: dict[str, Any] = field(default_factory=dict)


@dataclass
class Result:
    """What became of a case; ``detail`` is a short reason or the first output judged wrongly."""

    id: str
    kind: str
    status: str
    detail: str = ""
    compile_seconds: float = 0.0
    false_accepts: int = 0
    false_rejects: int = 0
    outputs: int = 0


# -- the files -------------------------------------------------------------------------------------


def read_lines(name: str) -> Iterator[dict[str, Any]]:
    """The objects of a JSON Lines file of the data folder."""
    path = DATA / name
    with lzma.open(path, "rt") if name.endswith(".xz") else open(path) as file:  # type: ignore[operator]
        for line in file:
            yield json.loads(line)


def case_of(row: dict[str, Any]) -> Case:
    """A row of the reported or the peers' cases."""
    accept = (*row["accept"], *row.get("policy", ()))
    error = "must" if row.get("expect_error") else "may" if row.get("error_ok") else "no"
    return Case(row["id"], row["kind"], row["input"], accept, tuple(row["reject"]), error)


def written_json(value: Any) -> str:
    """A value as JSON text: characters as they are, unless half a surrogate pair is among them."""
    text = json.dumps(value, ensure_ascii=False)
    return json.dumps(value) if any("\ud800" <= char <= "\udfff" for char in text) else text


def json_case(row: dict[str, Any], schema: Any = None, **options: Any) -> Case:
    """A row of MaskBench or of the JSON Schema test suite: instances are written as JSON.

    ``schema`` and ``options`` are what is compiled, if not the row's own schema.
    """
    schema = row["schema"] if schema is None else schema
    written = [(test["valid"], written_json(test["data"])) for test in row["tests"]]
    return Case(
        row["id"],
        "json_schema",
        schema,
        tuple(text for valid, text in written if valid),
        tuple(text for valid, text in written if not valid),
        options=options,
    )


def reported() -> list[Case]:
    """Faults that users of other engines reported."""
    return [case_of(row) for row in read_lines("reported_cases.jsonl") if row["kind"] != "server"]


def peers() -> list[Case]:
    """Constraints from the tests of other engines."""
    return [case_of(row) for row in read_lines("peer_cases.jsonl.xz")]


def peer_errors() -> list[Case]:
    """Constraints that other engines refuse: they may be taken, but fast; and some that they must take."""
    rows = read_lines("peer_error_cases.jsonl.xz")
    return [
        Case(row["id"], row["kind"], row["input"], error="no" if row["compiles"] else "may") for row in rows
    ]


def maskbench() -> list[Case]:
    """Schemas from the wild, with instances."""
    return [json_case(row) for row in read_lines("maskbench_dev.jsonl.xz")]


def suite() -> list[Case]:
    """The JSON Schema test suite, as a user would send its schemas."""
    return [json_case(row) for row in read_lines("json_schema_test_suite_dev.jsonl.xz")]


def suite_declared() -> list[Case]:
    """The JSON Schema test suite by its own rules: schemas name their drafts, remote documents are there."""
    with lzma.open(DATA / "json_schema_test_suite_remotes.json.xz", "rt") as file:
        documents = json.load(file)
    remotes = {f"http://localhost:1234/{path}": document for path, document in documents.items()}
    drafts = {
        "draft4": "http://json-schema.org/draft-04/schema#",
        "draft6": "http://json-schema.org/draft-06/schema#",
        "draft7": "http://json-schema.org/draft-07/schema#",
        "draft2019-09": "https://json-schema.org/draft/2019-09/schema",
        "draft2020-12": "https://json-schema.org/draft/2020-12/schema",
    }
    cases = []
    for row in read_lines("json_schema_test_suite_dev.jsonl.xz"):
        schema = row["schema"]
        if isinstance(schema, dict):
            schema = {"$schema": drafts[row["draft"]]} | schema
        options = {"documents": remotes} if "localhost:1234" in json.dumps(schema) else {}
        cases.append(json_case(row, schema, **options))
    return cases


# Why instances of the suite are judged otherwise on purpose, by the case's id.
SUITE_POLICIES = {
    r"draft2020-12/format#": "formats are asserted, as the optional part wants it of the same schemas",
    r"float-overflow": "no numbers above the largest double",
    r"format/(hostname|idn-)": "host names, in addresses too, are ASCII without A-labels",
    r"format/(date-)?time#": "leap seconds only at 23:59:60 UTC",
    r"format/ecmascript-regex": "format regex without look-around, named groups and empty classes",
    r"optional/content#": "contentMediaType is an annotation",
    r"draft[47]/ref#5|zeroTerminatedFloats": "without $schema the newest draft is meant",
    r"vocabulary": "validation cannot be switched off by a meta-schema of one's own",
}


CORPORA: dict[str, Callable[[], list[Case]]] = {
    "reported": reported,
    "peers": peers,
    "peer_errors": peer_errors,
    "maskbench": maskbench,
    "suite": suite,
    "suite_declared": suite_declared,
}


def sample(cases: list[Case], count: int | None, seed: int = 0) -> list[Case]:
    """``count`` of the cases, the same ones each time; all of them for None."""
    if count is None or count >= len(cases):
        return cases
    return random.Random(seed).sample(cases, count)


# -- the engines -----------------------------------------------------------------------------------


def grammar_of(kind: str, constraint: Any, **options: Any) -> Any:
    """The IR that the frontend of this kind makes of a constraint."""
    module = import_module(f"vllm_guided.frontends.{kind}")
    return getattr(module, f"{kind}_grammar")(constraint, **options)


Accepts = Callable[[str], bool]


class NaiveEngine:
    """The reference: slow, no vocabulary."""

    def compile(self, case: Case) -> Accepts:
        """A function that says whether an output is in the language."""
        import naive

        recogniser = naive.Recogniser(grammar_of(case.kind, case.constraint, **case.options))

        def accepts(text: str) -> bool:
            fits = recogniser.push_all(text.encode("utf-8", "surrogatepass"))
            verdict = fits and recogniser.accepting()
            recogniser.pop(len(recogniser))
            return verdict

        return accepts


class RealEngine:
    """The product, over a vocabulary; ``tokens``: "bytes" (single bytes) or "longest" (longest token first).

    With ``masks`` each step's mask is filled too, and the token must be in it.
    """

    def __init__(self, vocabulary: str = "bytes", tokens: str = "bytes", masks: bool = False) -> None:
        import vllm_guided as vg

        if vocabulary == "bytes":
            single: list[bytes | None] = [bytes([byte]) for byte in range(256)]
            # Padded, because some grammars name tokens by ids.
            self.vocabulary = vg.Vocabulary([*single, None], stop_token_ids=[256], vocab_size=8192)
        else:
            from vocabularies import llama3

            _, self.vocabulary = llama3()
        self.compiler = vg.GrammarCompiler(self.vocabulary)
        self.stop = self.vocabulary.stop_token_ids[0]
        self.single = {self.vocabulary.token_bytes(i): i for i in reversed(range(self.vocabulary.size))}
        self.greedy = tokens == "longest"
        self.masks = masks
        self.bitmask = vg.allocate_token_bitmask(1, self.vocabulary.size)

    def tokens_of(self, data: bytes) -> list[int]:
        """The data as tokens."""
        if self.greedy:
            return self.vocabulary.encode_greedy(data)
        return [self.single[data[i : i + 1]] for i in range(len(data))]

    def compile(self, case: Case) -> Accepts:
        """A function that says whether an output is accepted token by token and may end there."""
        method = getattr(self.compiler, f"compile_{case.kind}")
        matcher = method(case.constraint, **case.options).matcher()

        def accepts(text: str) -> bool:
            matcher.reset()
            tokens = [*self.tokens_of(text.encode("utf-8", "surrogatepass")), self.stop]
            if not self.masks:
                return bool(matcher.accept_tokens(tokens))
            for token in tokens:
                matcher.fill_bitmask(self.bitmask, 0)
                allowed = bool(int(self.bitmask[0, token // 32]) >> (token % 32) & 1)
                if allowed != bool(matcher.accept_tokens([token])):
                    raise AssertionError(f"mask and accept disagree on token {token} in {text!r}")
                if not allowed:
                    return False
            return True

        return accepts


# -- the replay ------------------------------------------------------------------------------------


class OutOfTime(BaseException):
    """The limit of one case passed. Not an Exception, so that no one swallows it."""


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raise OutOfTime in the block after ``seconds`` (main thread of a process only)."""

    def stop(*_: object) -> None:
        raise OutOfTime

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def replay_case(engine: NaiveEngine | RealEngine, case: Case, seconds: float) -> Result:
    """Compile and try every output; never raises."""
    result = Result(case.id, case.kind, "pass")
    wrong: list[str] = []
    started = time.perf_counter()
    try:
        with limited(seconds):
            try:
                accepts = engine.compile(case)
            except GrammarError as error:
                result.compile_seconds = time.perf_counter() - started
                empty = isinstance(error, InvalidConstraint) and case.reject and not case.accept
                result.status = "pass" if empty or case.error in ("must", "may") else "refused"
                result.detail = f"{type(error).__name__}: {error}"
                return result
            result.compile_seconds = time.perf_counter() - started
            for expected, texts in ((True, case.accept), (False, case.reject)):
                for text in texts:
                    result.outputs += 1
                    if accepts(text) != expected:
                        wrong.append(f"{'refuses' if expected else 'accepts'} {text}")
                        result.false_rejects += expected
                        result.false_accepts += not expected
    except OutOfTime:
        result.status, result.detail = "slow", f"more than {seconds} s"
        return result
    except Exception as error:
        # Compiled code wraps what a signal handler raises in it.
        if isinstance(error.__cause__ or error.__context__, OutOfTime):
            result.status, result.detail = "slow", f"more than {seconds} s"
            return result
        frame = traceback.extract_tb(error.__traceback__)[-1]
        result.status = "crash"
        result.detail = f"{type(error).__name__}: {error} ({Path(frame.filename).name}:{frame.lineno})"
        return result
    if case.error == "must":
        result.status, result.detail = "wrong_error", "must be refused, but compiles"
    elif wrong:
        result.status = "false_accept" if result.false_accepts else "false_reject"
        result.detail = wrong[-1] if result.false_accepts else wrong[0]
    return result


def replay(
    engine: NaiveEngine | RealEngine, cases: Iterable[Case], seconds: float = 10.0
) -> Iterator[Result]:
    """The results of the cases, one by one."""
    for case in cases:
        yield replay_case(engine, case, seconds)


# -- the ratchet -----------------------------------------------------------------------------------


@dataclass
class Ratchet:
    """What is known to fail: ``{status: {reason: [ids]}}``, and how much of the whole passes."""

    counts: dict[str, int] = field(default_factory=dict)
    known: dict[str, dict[str, list[str]]] = field(default_factory=dict)

    @classmethod
    def load(cls, name: str) -> Ratchet:
        """The ratchet of a corpus, empty if there is none yet."""
        path = RATCHETS / f"{name}.json"
        return cls(**json.loads(path.read_text())) if path.exists() else cls()

    def save(self, name: str) -> None:
        """Write it, sorted, one reason a line, so that a change reads well in a diff."""
        (RATCHETS / f"{name}.json").write_text(json.dumps(asdict(self), indent=1, ensure_ascii=False) + "\n")

    def status_of(self) -> dict[str, str]:
        """The recorded status of each id that does not pass."""
        return {
            case: status for status, reasons in self.known.items() for ids in reasons.values() for case in ids
        }

    @classmethod
    def of(cls, results: list[Result]) -> Ratchet:
        """The ratchet these results would make."""
        counts = Counter(result.status for result in results)
        known: dict[str, dict[str, list[str]]] = {}
        for result in sorted(results, key=lambda result: result.id):
            if result.status != "pass":
                reasons = known.setdefault(result.status, {})
                reasons.setdefault(short_reason(result), []).append(result.id)
        return cls(
            {status: counts[status] for status in STATUSES if counts[status]},
            {status: dict(sorted(known[status].items())) for status in STATUSES if status in known},
        )

    def compare(self, results: list[Result]) -> tuple[list[str], list[str]]:
        """What got worse and what got better, each as lines to read."""
        before = self.status_of()
        worse, better = [], []
        for result in results:
            old = before.get(result.id, "pass")
            if STATUSES.index(result.status) > STATUSES.index(old):
                worse.append(f"{result.id}: {old} -> {result.status}: {result.detail[:300]}")
            elif result.status != old:
                better.append(f"{result.id}: {old} -> {result.status}")
        return worse, better


def short_reason(result: Result) -> str:
    """A reason without the case's own texts: an error's class and what it says, or the policy behind it."""
    if result.status in ("false_reject", "false_accept"):
        for pattern, reason in SUITE_POLICIES.items():
            if result.id.startswith("draft") and re.search(pattern, result.id):
                return reason
    if result.status != "refused":
        return ""
    kind, _, message = result.detail.partition(": ")
    if message.startswith("#") or message.startswith(("line ", "position ")):
        message = message.partition(": ")[2] or message
    elif re.match(r"\S+#", message):  # a place in another document
        message = message.partition(": ")[2]
    return f"{kind}: {re.sub(QUOTED, '…', message)}"

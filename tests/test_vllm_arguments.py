"""The backend's name on the command line, in YAML files and in constructors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from vllm_guided.vllm.arguments import merge_arguments

NAME = "vllm_guided"
SC = "--structured-outputs-config"
FLAG = "--guided-decoding-backend"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (["serve", "m"], None),
        (["serve", "m", SC, '{"backend":"xgrammar"}'], None),
        (["serve", "m", SC, '{"backend":"xgrammar"}', SC, '{"disable_any_whitespace":true}'], None),
        (["serve", "m", SC, "not json"], None),
        ([FLAG, NAME], {"backend": NAME}),
        ([f"{FLAG}={NAME}"], {"backend": NAME}),
        (["--guided_decoding_backend", NAME], {"backend": NAME}),
        (
            [SC, '{"disable_any_whitespace":true}', FLAG, NAME],
            {"disable_any_whitespace": True, "backend": NAME},
        ),
        ([FLAG, NAME, f'{SC}={{"backend":"auto"}}'], {"backend": NAME}),
        ([FLAG, NAME, FLAG, NAME], {"backend": NAME}),
        (
            [SC, '{"disable_any_whitespace":true}', SC, '{"backend":"vllm_guided"}'],
            {"disable_any_whitespace": True, "backend": NAME},
        ),
    ],
)
def test_merging(before: list[str], after: dict[str, Any] | None) -> None:
    merged = merge_arguments(list(before))
    if after is None:
        assert merged == before
        return
    assert merged.count(SC) == 1 and FLAG not in " ".join(merged)
    assert json.loads(merged[merged.index(SC) + 1]) == after


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([FLAG], "expected one argument"),
        ([FLAG, "xgrammar"], "'xgrammar' is not 'vllm_guided'"),
        ([FLAG, NAME, SC, '{"backend":"xgrammar"}'], "Keep one of them"),
    ],
)
def test_contradictions(arguments: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        merge_arguments(arguments)


@pytest.fixture(scope="module")
def parser() -> Any:
    pytest.importorskip("vllm")
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    return AsyncEngineArgs.add_cli_args(FlexibleArgumentParser())


@pytest.mark.parametrize(
    ("arguments", "compact"),
    [
        ([FLAG, NAME], False),
        (["--guided_decoding_backend", NAME], False),
        ([FLAG, NAME, SC, '{"disable_any_whitespace": true}'], True),
        ([f"{SC}.disable_any_whitespace", "true", FLAG, NAME], True),
        ([f"{SC}.backend", NAME], False),
        ([f"{SC}.backend", NAME, f"{SC}.disable_any_whitespace", "true"], True),
        ([SC, '{"disable_any_whitespace": true}', f"{SC}.backend", NAME], True),
        ([SC, '{"backend": "vllm_guided"}'], False),
        (["yaml", "guided-decoding-backend: vllm_guided\n"], False),
        (["yaml", "guided_decoding_backend: vllm_guided\nstructured-outputs-config:\n"
                  "  disable_any_whitespace: true\n"], True),
        (["yaml", "structured-outputs-config:\n  backend: vllm_guided\n"], False),
    ],
)  # fmt: skip
def test_command_lines(parser: Any, tmp_path: Path, arguments: list[str], compact: bool) -> None:
    if arguments[0] == "yaml":
        file = tmp_path / "config.yaml"
        file.write_text(arguments[1])
        arguments = ["--seed", "1", "--config", str(file)]
    config = parser.parse_args(arguments).structured_outputs_config
    assert (config.backend, config.disable_any_whitespace) == (NAME, compact)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([FLAG, "outlines"], "For vLLM's own backends use --structured-outputs-config.backend"),
        ([FLAG, NAME, f"{SC}.backend", "guidance"], "Keep one of them"),
        (["--guided-decoding-back", NAME], "in full"),
        ([f"{SC}.backend", "nonsense"], "nonsense"),
    ],
)
def test_command_lines_that_fail(
    parser: Any, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    with pytest.raises(SystemExit):
        parser.parse_args(arguments)
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("name", ["auto", "xgrammar", "guidance", "outlines"])
def test_other_backends_are_parsed_as_before(parser: Any, name: str) -> None:
    assert parser.parse_args([f"{SC}.backend", name]).structured_outputs_config.backend == name
    assert parser.parse_args([]).structured_outputs_config.backend == "auto"


@pytest.mark.parametrize("class_name", ["EngineArgs", "AsyncEngineArgs"])
@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"guided_decoding_backend": NAME}, (NAME, False)),
        ({"guided_decoding_backend": NAME, "structured_outputs_config": {"disable_any_whitespace": True}},
         (NAME, True)),
        ({"structured_outputs_config": {"backend": "vllm_guided", "disable_any_whitespace": True}}, None),
        ({}, ("auto", False)),
    ],
)  # fmt: skip
def test_engine_args(tmp_path: Path, class_name: str, arguments: dict[str, Any], expected: Any) -> None:
    arg_utils = pytest.importorskip("vllm.engine.arg_utils")
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    config = getattr(arg_utils, class_name)(model=str(tmp_path), **arguments).structured_outputs_config
    if expected is not None:
        assert (config.backend, config.disable_any_whitespace) == expected


def test_engine_args_refuse_another_name(tmp_path: Path) -> None:
    arg_utils = pytest.importorskip("vllm.engine.arg_utils")
    with pytest.raises(ValueError, match="'xgrammar' is not 'vllm_guided'"):
        arg_utils.EngineArgs(model=str(tmp_path), guided_decoding_backend="xgrammar")

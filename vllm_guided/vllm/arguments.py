"""The ways a user names the backend: ``--guided-decoding-backend`` and ``LLM(guided_decoding_backend=...)``.

vLLM dropped that flag in 0.12 in favour of ``--structured-outputs-config``. It comes back for our name only
and becomes part of the newer option *before* the arguments are parsed, so that it meets the other options
(``disable_any_whitespace``) in one configuration; dotted options and YAML files are JSON by then.
"""

from __future__ import annotations

import argparse
import functools
import inspect
import json
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from vllm_guided.vllm.selection import NAME, expect

FLAG = "--guided-decoding-backend"
KEYWORD = "guided_decoding_backend"
OPTION = "--structured-outputs-config"
HELP = (
    "The backend for structured outputs. Only `vllm_guided` is accepted here; it means the same as "
    "`--structured-outputs-config.backend vllm_guided`."
)


def merge_backend_flag(module: ModuleType) -> None:
    """Turn the flag into part of ``--structured-outputs-config`` when arguments are parsed."""
    parser_class = expect(module, "FlexibleArgumentParser")
    original = expect(parser_class, "parse_known_args", parameters=("self", "args", "namespace"))

    @functools.wraps(original)
    def parse_known_args(
        self: Any, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> Any:
        if args is not None:
            try:
                args = merge_arguments(list(args))
            except ValueError as fault:
                self.error(str(fault))
        return original(self, args, namespace)

    parser_class.parse_known_args = parse_known_args


def merge_arguments(args: list[str]) -> list[str]:
    """Replace the flag in ``args`` by ``--structured-outputs-config JSON``.

    Several ``--structured-outputs-config`` (a JSON text and dotted keys) are merged when our backend is
    meant; argparse would keep the last one only. Without our name the arguments come back as they are.

    Raises:
        ValueError: the flag has no value, another value than ours, or contradicts the other option.
    """
    rest: list[str] = []
    flags: list[str] = []
    configs: list[str] = []
    position = 0
    while position < len(args):
        arg = args[position]
        name, equals, value = arg.partition("=")
        target = None
        if name.replace("_", "-") == FLAG:
            target = flags
        elif name == OPTION:
            target = configs
        if target is None:
            rest.append(arg)
            position += 1
            continue
        if not equals:
            position += 1
            if position == len(args):
                raise ValueError(f"argument {name}: expected one argument")
            value = args[position]
        target.append(value)
        position += 1
    for value in flags:
        check_name(value)
    merged: dict[str, Any] = {}
    for text in configs:
        try:
            config = json.loads(text)
        except ValueError:
            return args if not flags else [*rest, OPTION, text]
        if not isinstance(config, dict):
            return args if not flags else [*rest, OPTION, text]
        merged.update(config)
    if flags:
        merged = name_backend(merged)
    elif merged.get("backend") != NAME:
        return args
    return [*rest, OPTION, json.dumps(merged)]


def check_name(value: Any) -> None:
    """Raises ValueError unless ``value`` is the name of our backend."""
    if value != NAME:
        raise ValueError(
            f"argument {FLAG}: {value!r} is not {NAME!r}. For vLLM's own backends use {OPTION}.backend."
        )


def name_backend(config: dict[str, Any]) -> dict[str, Any]:
    """The configuration with our backend in it.

    Raises:
        ValueError: it names another one.
    """
    named = config.get("backend", NAME)
    if named not in (NAME, "auto"):
        raise ValueError(f"{FLAG} says {NAME!r}, but {OPTION} says {named!r}. Keep one of them.")
    return {**config, "backend": NAME}


class _NotReached(argparse.Action):
    """The flag is taken away before parsing; an abbreviation of it would slip through."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        parser.error(f"write {FLAG} in full, not {option_string}")


def add_backend_flag(module: ModuleType) -> None:
    """Show the flag in the help of every command that takes engine arguments."""
    engine_args = expect(module, "EngineArgs")
    original = expect(engine_args, "add_cli_args", parameters=("parser",))

    @functools.wraps(original)
    def add_cli_args(parser: Any) -> Any:
        parser = original(parser)
        if FLAG not in parser._option_string_actions:
            parser.add_argument(FLAG, action=_NotReached, help=HELP, default=argparse.SUPPRESS, metavar=NAME)
        return parser

    engine_args.add_cli_args = staticmethod(add_cli_args)


def accept_backend_argument(module: ModuleType) -> None:
    """Let ``EngineArgs`` and ``AsyncEngineArgs`` take ``guided_decoding_backend="vllm_guided"``."""
    config_class = expect(module, "StructuredOutputsConfig")
    for name in ("EngineArgs", "AsyncEngineArgs"):
        _take_keyword(expect(module, name), config_class)


def accept_llm_argument(module: ModuleType) -> None:
    """Let ``LLM`` take ``guided_decoding_backend="vllm_guided"``."""
    _take_keyword(expect(module, "LLM"), expect(module, "StructuredOutputsConfig"))


def _take_keyword(owner: Any, config_class: Any) -> None:
    """Wrap ``owner.__init__`` so that it merges the keyword into ``structured_outputs_config``."""
    original: Callable[..., None] = owner.__init__
    if "structured_outputs_config" not in inspect.signature(original).parameters:
        expect(original, "structured_outputs_config")

    @functools.wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        value = kwargs.pop(KEYWORD, None)
        if value is not None:
            check_name(value)
            config = kwargs.get("structured_outputs_config")
            if config is None:
                config = {}
            if not isinstance(config, dict):
                config = {name: getattr(config, name) for name in config_class.__dataclass_fields__}
            kwargs["structured_outputs_config"] = config_class(**name_backend(config))
        original(self, *args, **kwargs)

    owner.__init__ = __init__

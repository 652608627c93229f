"""The name of the backend in vLLM's configuration; in processes of their own, as that is where it counts."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

pytestmark = pytest.mark.slow
pytest.importorskip("vllm")


def run(code: str, **environment: str) -> str:
    import os

    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        env={**os.environ, "VLLM_LOGGING_LEVEL": "ERROR", **environment},
    )
    assert result.returncode == 0, result.stderr[-2000:]
    return result.stdout


ACCEPTED = """
    {first}
    from pydantic import TypeAdapter
    from vllm.config import StructuredOutputsConfig as Config, VllmConfig
    for extra in ({{}}, {{"disable_any_whitespace": True}}, {{"disable_additional_properties": True}}):
        config = Config(backend="vllm_guided", **extra)
        assert config.backend == "vllm_guided"
        text = TypeAdapter(Config).dump_json(config)
        assert TypeAdapter(Config).validate_json(text) == config
        assert VllmConfig(structured_outputs_config=config).structured_outputs_config.backend == "vllm_guided"
        embedded = VllmConfig(structured_outputs_config={{"backend": "vllm_guided", **extra}})
        assert embedded.structured_outputs_config == config
    for wrong in ({{"backend": "nonsense"}}, {{"backend": "outlines", "disable_any_whitespace": True}},
                  {{"backend": "xgrammar", "disable_additional_properties": True}}):
        for build in (lambda: Config(**wrong), lambda: VllmConfig(structured_outputs_config=wrong)):
            try:
                build()
            except ValueError:
                continue
            raise AssertionError(wrong)
    import sys
    assert "numba" not in sys.modules and "lark" not in sys.modules
    print("accepted")
"""


@pytest.mark.parametrize(
    ("first", "environment"),
    [
        ("", {}),
        ("from vllm import LLM", {}),
        ("import vllm.config.vllm; from vllm.plugins import load_general_plugins; load_general_plugins()",
         {"VLLM_TARGET_DEVICE": "cpu"}),
    ],
    ids=["platform plugin", "while LLM is imported", "general plugin, after the configuration was built"],
)  # fmt: skip
def test_the_name_and_its_options_are_accepted(first: str, environment: dict[str, str]) -> None:
    assert "accepted" in run(ACCEPTED.format(first=first), **environment)


def test_unselected_it_changes_nothing() -> None:
    code = """
        from vllm.config import StructuredOutputsConfig as Config
        from vllm.plugins import load_general_plugins
        load_general_plugins()
        from vllm_guided.vllm import selection
        assert Config().backend == "auto" and not selection.is_active()
        from vllm.sampling_params import SamplingParams
        from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
        from vllm.entrypoints.serve.engine import protocol
        assert "guided_json" in protocol._REMOVED_GUIDED_FIELDS
        body = {"messages": [], "guided_json": {"type": "object"}, "structured_outputs": {"regex": "a"}}
        request = ChatCompletionRequest.model_validate(body)
        params = request.to_sampling_params(10, {})
        assert params.structured_outputs.regex == "a" and request.model_extra["guided_json"]
        params = SamplingParams(extra_args={"guided_json": {}})
        params._validate_structured_outputs(None, Config(), None)
        assert params.structured_outputs is None and params.extra_args == {"guided_json": {}}
        selection.activate()
        assert "guided_json" not in protocol._REMOVED_GUIDED_FIELDS
        print("unchanged")
    """
    assert "unchanged" in run(code)


def test_hidden_by_vllm_plugins_the_name_is_unknown() -> None:
    code = """
        from vllm.config import StructuredOutputsConfig
        try:
            StructuredOutputsConfig(backend="vllm_guided")
        except ValueError as error:
            print("refused", error)
    """
    assert "refused" in run(code, VLLM_PLUGINS="another")


@pytest.mark.parametrize("first", ["vllm", "vllm_guided.vllm.grammar", "vllm_guided.vllm.rows"])
def test_every_adapter_fits_the_installed_vllm(first: str) -> None:
    code = f"""
        import importlib
        importlib.import_module("{first}")
        from vllm_guided.vllm import imports, plugin, selection
        plugin.register()
        for name in plugin.HOOKS:
            importlib.import_module(name)
        assert not selection._faults, selection._faults
        assert not imports._waiting, imports._waiting
        from vllm_guided.vllm.grammar import GuidedGrammar
        from vllm_guided.vllm import rows
        assert rows.GuidedGrammar is GuidedGrammar
        selection.activate()
        print("fits")
    """
    assert "fits" in run(code)

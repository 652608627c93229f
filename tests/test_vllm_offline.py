"""``LLM(...)`` in a process that never imports this package before it, on a model of 300 tokens."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

pytest.importorskip("vllm")
pytestmark = [pytest.mark.slow, pytest.mark.server]

PROGRAM = """
    import json, re, sys

    def main():
        from vllm import LLM, SamplingParams
        from vllm.exceptions import VLLMValidationError
        from vllm.sampling_params import BeamSearchParams, StructuredOutputsParams

        assert "vllm_guided.compiler" not in sys.modules
        model = LLM(
            sys.argv[1],
            guided_decoding_backend="vllm_guided",
            structured_outputs_config={"disable_any_whitespace": True},
            load_format="dummy", dtype="float32", max_model_len=512, max_num_seqs=16, enforce_eager=True,
        )
        import vllm_guided
        number = {"type": "integer", "minimum": 1, "maximum": 99}
        schema = {"type": "object", "properties": {"a": number, "b": {"type": "string", "maxLength": 5}},
                  "required": ["a", "b"], "additionalProperties": False}
        common = {"max_tokens": 80, "temperature": 1.0}
        shared = SamplingParams(extra_args={"guided_choice": ["yes", "no"]}, **common)
        params = [
            SamplingParams(extra_args={"guided_json": schema}, **common),
            vllm_guided.SamplingParams(guided_json=schema, **common),
            SamplingParams(structured_outputs=StructuredOutputsParams(json=schema), **common),
            SamplingParams(structured_outputs=StructuredOutputsParams(regex="[ab]{3,5}"), **common),
            vllm_guided.SamplingParams(guided_grammar='start: "ab" start | "c"', **common),
            shared, shared,
            SamplingParams(max_tokens=5),
        ]
        outputs = model.generate(["hello"] * len(params), params, use_tqdm=False)
        texts = [output.outputs[0].text for output in outputs]
        finish = [output.outputs[0].finish_reason for output in outputs]
        print(texts, finish)
        for text in texts[:3]:
            value = json.loads(text)
            assert set(value) == {"a", "b"} and 1 <= value["a"] <= 99 and len(value["b"]) <= 5, text
            assert text.startswith('{"a":') and ',"b":"' in text, text
        assert re.fullmatch("[ab]{3,5}", texts[3])
        assert re.fullmatch("(ab)*c", texts[4]) or finish[4] == "length"
        assert texts[5] in ("yes", "no") and texts[6] in ("yes", "no")
        assert finish[:4] == ["stop"] * 4

        for bad, message in [
            ({"guided_json": {"type": "wrong"}}, "type"),
            ({"guided_regex": "("}, "regex|\\\\("),
            ({"guided_json": schema, "guided_regex": "a"}, "one constraint"),
        ]:
            try:
                model.generate(["hello"], SamplingParams(extra_args=bad, **common), use_tqdm=False)
            except VLLMValidationError as error:
                assert re.search(message, str(error)), error
            else:
                raise AssertionError(bad)

        beams = model.beam_search(
            [{"prompt": "hello"}],
            BeamSearchParams(beam_width=2, max_tokens=8,
                             structured_outputs=StructuredOutputsParams(choice=["yes", "no"])),
        )
        for sequence in beams[0].sequences:
            text = sequence.text.removeprefix("hello").replace("<|end|>", "").replace("<|eot|>", "")
            assert text.endswith(("yes", "no")), sequence.text
        print("all good")

    if __name__ == "__main__":
        main()
"""


def test_offline(tmp_path: Path) -> None:
    import tiny_model

    model = tmp_path / "model"
    model.mkdir()
    tiny_model.write_model(model)
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(PROGRAM))
    environment = {
        **os.environ,
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "VLLM_HOST_IP": "127.0.0.1",
    }
    command = [sys.executable, str(program), str(model)]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900)
    assert "all good" in result.stdout, (result.stdout[-3000:], result.stderr[-5000:])
    assert result.returncode == 0

"""What vLLM's plugin groups call: register the backend in every process, and early enough.

``register`` (group ``vllm.general_plugins``) runs once in each process that vLLM starts; ``prepare`` (group
``vllm.platform_plugins``) runs when vLLM first asks what platform it is on, which is before it builds the
configuration classes, so that ``LLM(structured_outputs_config=...)`` knows our name without anybody
importing this package. It answers ``None``: not a platform of ours.

Both only put hooks in place (:mod:`vllm_guided.vllm.imports`), import nothing heavy, may be called any
number of times, and never raise.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from vllm_guided.vllm import imports, selection
from vllm_guided.vllm.run_name import name_run

# module of vLLM -> the functions of this package that adapt it, as "module:function"
HOOKS: dict[str, tuple[str, ...]] = {
    "vllm.config.structured_outputs": ("config:allow_backend_name",),
    "vllm.config.vllm": ("config:refresh_embedded_schema",),
    "vllm.utils.argparse_utils": ("arguments:merge_backend_flag",),
    "vllm.engine.arg_utils": ("arguments:add_backend_flag", "arguments:accept_backend_argument"),
    "vllm.entrypoints.llm": ("arguments:accept_llm_argument",),
    "vllm.sampling_params": ("validation:check_constraints",),
    "vllm.entrypoints.generate.base.protocol": ("validation:skip_xgrammar_tag_check",),
    "vllm.parser.abstract_parser": (
        "validation:judge_tool_constraints",
        "validation:refuse_beside_forced_calls",
    ),
    "vllm.entrypoints.serve.engine.protocol": ("requests:drop_removed_field_warning",),
    "vllm.entrypoints.openai.chat_completion.protocol": (
        "requests:accept_guided_chat_fields",
        "bodies:check_bodies",
    ),
    "vllm.entrypoints.openai.completion.protocol": (
        "requests:accept_guided_completion_fields",
        "bodies:check_bodies",
    ),
    "vllm.entrypoints.openai.responses.protocol": (
        "requests:accept_guided_responses_fields",
        "bodies:check_bodies",
    ),
    "vllm.entrypoints.openai.responses.serving": ("event_streams:tell_refusals",),
    "vllm.entrypoints.anthropic.serving": (
        "bodies:check_messages",
        "event_streams:tell_refusals_of_messages",
    ),
    "vllm.entrypoints.generate.beam_search.offline": ("beam_search:use_backend",),
    "vllm.v1.engine.async_llm": ("precheck:judge_before_check",),
    "vllm.v1.engine.output_processor": ("contradictions:tell_clients",),
    "vllm.v1.engine.llm_engine": ("warmup:check_samples",),
    "vllm.v1.structured_output": ("manager:use_backend",),
    "vllm.v1.core.sched.scheduler": ("advance:advance_whole_batch", "advance:validate_whole_batch"),
    "vllm.v1.engine.core": ("shipping:open_tables",),
    "vllm.v1.structured_output.utils": ("worker:apply_in_place",),
    "vllm.v1.worker.gpu_model_runner": (
        "worker:apply_in_place",
        "worker:warm_up_on_device",
        "table:receive_rows",
        "greedy:choose_in_sampler",
    ),
    "vllm.v1.worker.gpu.model_runner": ("table:receive_rows",),
    "vllm.v1.worker.gpu.structured_outputs": ("second_runner:apply_in_place",),
    "vllm.v1.worker.worker_base": ("worker:note_selection",),
    "vllm.v1.metrics.prometheus": ("metrics:join_registry",),
    # Where several API servers are started, it has the function before any plugin is loaded.
    "vllm.entrypoints.serve.instrumentator.metrics": ("metrics:join_registry",),
    "vllm.v1.utils": ("rust_frontend:refuse",),
}

_registered = False


def register() -> None:
    """Make ``vllm_guided`` a structured-output backend of the vLLM in this process."""
    global _registered
    if _registered:
        return
    _registered = True
    try:
        name_run()
        for name, places in HOOKS.items():
            for place in places:
                imports.when_imported(name, _adapter(place))
    except Exception as fault:
        try:
            selection.record_fault("the plugin", fault)
        except Exception:
            selection.logger.exception("vllm_guided could not register itself")


def prepare() -> None:
    """Register early; the answer ``None`` tells vLLM that this is no platform."""
    register()


def _adapter(place: str) -> imports.Patch:
    """The function at ``place``, imported only when its turn comes."""
    module_name, _, function_name = place.partition(":")

    def adapt(module: ModuleType) -> None:
        function = getattr(import_module(f"vllm_guided.vllm.{module_name}"), function_name)
        function(module)

    adapt.__name__ = place
    return adapt

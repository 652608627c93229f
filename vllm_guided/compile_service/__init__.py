"""Constraints compiled in processes of their own, never where an event loop or an engine's step waits.

``zygote.py`` is a small process that has loaded the frontends and the automaton passes once and forks
workers; ``worker.py`` compiles one constraint after another; ``client.py`` gives out the jobs on an event
loop, bounds them in number, time and memory, and gives up what nobody waits for any more; ``blocking.py`` is
the same for threads; ``protocol.py`` says what travels between them. What was compiled goes into
:mod:`vllm_guided.handoff` and :mod:`vllm_guided.store`, before and after the answer.

Nothing here knows vLLM, and a client loads neither numba nor the compiler.
"""

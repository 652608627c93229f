"""The vLLM plugin: everything that touches vLLM lives here, the rest of the package knows nothing of it.

vLLM has no registry for structured-output backends, so the plugin replaces small parts of it while its
modules are imported. Each replaced thing has one function here that first checks the shape it expects.
"""

"""``vllm-guided demo``: a real vLLM server on CPU, every kind of constraint, every output checked.

model.py writes a tiny random Llama, server.py starts and stops ``vllm serve``, cases.py lists the requests
and their independent judges, run.py sends them and prints the table; setup_cpu.py prepares a virtual
environment for vLLM on CPU. Nothing here is needed to use the package.
"""

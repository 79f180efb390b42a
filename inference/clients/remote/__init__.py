"""Engines that a foreign server with OpenAI's API runs: vLLM, SGLang, TGI, TensorRT-LLM, llama.cpp, and others."""

"""Commands that serve others until they are ended: editors (`lsp.py`), and clients of OpenAI's API (`serve.py`)."""

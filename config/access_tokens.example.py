"""Copy to access_tokens.py, which git ignores, and paste a "Read" token from your Hugging Face settings."""

hf_access_token = ""

"""Checkpoints from and to the files of other tools: safetensors, torch, DCP and Hugging Face folders.

torch is imported here and only inside functions. No pickle is read but through torch's weights_only.
"""

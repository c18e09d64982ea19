"""Trained drafters: what the frozen target says is captured once, a head learns from it, and the
result is served.

    eyespan train capture runs/capture_demo.toml
    eyespan train run runs/train_fovea_demo.toml

docs/train.md goes from your own fine-tuned model to a served drafter.
"""

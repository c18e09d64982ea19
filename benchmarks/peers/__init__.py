"""Other libraries' training-free drafters beside ours, on one pretrained language model.

Every library runs in its own environment, since their dependencies differ; what they share is this
folder, which needs only torch and transformers. In each process stock `generate()` takes turns with
the library's methods on every prompt, so a speed is a ratio within one process and one prompt, and
answers are compared by ids before times count.

    scripts/peers.sh        does all of it and prints the table
"""

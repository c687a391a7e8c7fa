"""Where do examples come from, and in which order? Sources, the pipeline, and augmentation inside the compiled step.

A batch is a dict of arrays with a leading example dimension: `images` (uint8, NHWC), `labels`, `indices` (each example's number
in its set) and `weights` (1; 0 for the padding of a last evaluation batch).
"""

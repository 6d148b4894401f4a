"""Typed calls into the protocol's SQL functions: one module per noun, one function per call."""

"""Constructions: every way to make a fact-storing MLP."""

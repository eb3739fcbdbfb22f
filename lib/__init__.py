"""The machinery behind the chapters: how linear maps and MLPs store facts.

Import the modules (``from lib import decoding, facts``); nothing is imported here, so that
validating a chapter's parameters does not wait for torch.
"""

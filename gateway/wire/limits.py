"""Bounds on what a client may send, the same for every endpoint."""

from __future__ import annotations

MAX_JSON_DEPTH = 64
MAX_JSON_CONTAINERS = 65_536  # objects and arrays in one body
MAX_JSON_MEMBERS = 131_072  # names in all its objects
MAX_MESSAGES = 2048
MAX_PARTS = 256
MAX_TOOLS = 128  # functions of one request
MAX_EMBEDDING_INPUTS = 2048
MAX_PAIRED_CHARACTERS = 8 * 1024 * 1024  # of one text that is paired with many, each time counted
MAX_EMBEDDING_TOKENS = 65_536  # ids in one input
MAX_LABELS = 256  # to choose from
MAX_LABEL = 200  # characters of one
MAX_PROBABILITIES = 65_536  # of one classification: of each label for each text
MAX_TASK = 40  # characters of a task's name
MAX_OUTPUT_TOKENS = 1_000_000
MAX_PROMPT_TOKENS = 1_000_000  # ids of one prompt
MAX_PROMPTS = 64  # of one request
MAX_CHOICES = 16  # answers of one request
MAX_LOGPROBS = 20  # most probable tokens at one position
MAX_TOKEN_ID = 2**31 - 1
MAX_IMAGES = 64  # in one request, its conversation included
MAX_IMAGE_BYTES = 5 * 1024 * 1024
MAX_IMAGE_SIDE = 8192  # pixels
MAX_IMAGE_PIXELS = 100_000_000  # of all images of one request: a few kilobytes of PNG unpack to 200 MiB
MAX_ADDRESS = 4096  # characters of an image's address

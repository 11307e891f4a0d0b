"""Draws a token and makes a generator once."""

import os

import numpy

BYTES = os.urandom(8).hex()
GENERATOR = numpy.random.default_rng()

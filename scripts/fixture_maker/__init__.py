"""The parts of scripts/make_fixtures.py, one module a group of fixtures."""

"""The HTTP service: request engine, API, page."""

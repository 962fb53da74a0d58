"""The papers compared fairly: the tables of docs/papers.md and its neighbours, and the trainings behind them."""

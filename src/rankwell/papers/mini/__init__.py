"""rankwell-mini, the model that ships: a small ranker learns to score as larger bi-encoders and rankers do.

``distil`` trains it on the teachers' scores, for given queries and for ones made of passages; ``filter`` drops
candidates that the teachers consider relevant; ``average`` is the mean of several stages' weights.

Recipes ``rankwell-mini``, ``distil`` and ``distil-judged``; page docs/recipes.md.
"""

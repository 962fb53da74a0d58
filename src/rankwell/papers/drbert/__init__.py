"""DR-BERT: domain-adaptive pre-training, type-adaptive pointwise training, noise reduction and listwise training.

    pretrain   masked words and next sentences, on the collection itself
    pointwise  ``[CLS] T [SEP] Q [SEP] D [SEP]`` with the type T of the query         (a stage of the trunk)
    denoise    drops unjudged candidates that the pointwise model takes for relevant
    listwise   a softmax over one relevant and several other documents                (a stage of the trunk)

STRM, its rule that a split word can only be matched as a whole, is an attention rule of the trunk; types in the input
are a template. What stands here is what only this system needs: pre-training, noise reduction, and the classifier of
query types.

Recipe ``drbert`` (and ``query-types`` for the classifier); command ``rankwell types``; pages docs/recipes.md
and docs/drbert.md.
"""

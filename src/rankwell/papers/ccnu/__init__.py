"""CCNU at TREC 2019 Deep Learning: a passage ranker over a frozen BERT, and a document ranker of sentence windows.

**Passages** (SDNet): query and passage go through BERT apart, and its weights stay as they are. A small network reads
the words' vectors, lets the passage attend to the query and to itself, and scores the ten strongest signals of
``softmax(uᵀ W V)``. Trained with a hinge loss, then interpolated with BM25: ``α·BM25 + (1−α)·S``, α = .8.

**Documents**: a BERT trained on natural language inference judges whether a window of 100 words entails the query;
the best three windows are interpolated with BM25, β = .9.

Recipes ``ccnu-passage``, ``nli`` and ``ccnu-document``; page docs/ccnu.md.

=======================  ===============================================================
:mod:`.words`            words, their pieces and their tags
:mod:`.word_features`    what the network reads of a word, and word vectors
:mod:`.stored_features`  the features of all passages on disk
:mod:`.network`          the layers of SDNet
:mod:`.ranker`           the ranker ``sdnet``
:mod:`.stage`            the stage ``sdnet``
:mod:`.entailment`       a classifier of sentence pairs as a ranker
=======================  ===============================================================
"""

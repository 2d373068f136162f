"""The key index: finding messages by key.

``key_index`` is the index of one store, ``index_follower`` feeds it from the log, ``search`` returns exact matches. Below these:
``staging`` and ``record_keys``/``key_hashing`` make entries of messages, ``index_files`` and ``index_file`` keep them in files of the
format in ``index_format``, ``lookup`` reads them back, ``index_state`` and ``index_restore`` are what a restart builds on.
"""

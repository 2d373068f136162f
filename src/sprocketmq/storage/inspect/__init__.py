"""Looking into the files of a store and verifying them, without a broker and without changing anything.

Everything here opens files read-only, reads them in windows, compares every length with what the file has before using it, and never
raises for the content of a file: content that cannot be right becomes an item or a finding that says why. So it works on stores of Apache's
broker, on damaged and hostile files, and on files that a running broker is writing. The verifier shares constants with the code that writes
the files, but has its own parsers, so that a mistake in one of the two shows.

=========================  ============================================================================
commit log                 ``segment_items``, one record: ``record_items``; many as arrays: ``log_windows``
consume queue              ``consume_queue_items``
batch consume queue        ``batch_queue_items``
key index                  ``index_items``
``checkpoint``             ``checkpoint_items``
``dispatched``             ``snapshot_items``
``config/*.json``          ``json_items``
``abort``, ``lock``        ``text_items``
which of these a path is   ``store_file``
the whole directory        ``overview``
everything against the log ``verification``, ``verify_log``, ``verify_queues``, ``verify_index``, ``verify_small_files``
one index file in itself   ``index_file_check``
units against the log      ``queue_units``, ``queue_check``; in the other direction: ``unit_check``
=========================  ============================================================================
"""

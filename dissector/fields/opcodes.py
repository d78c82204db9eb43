"""Ops: what is done with a field of a record, by a kernel for many records at once."""

(
    UNSIGNED, SIGNED, BIT, TEXT, TABLE, FLAGS, FLAG_BIT,
    SELECT,  # as UNSIGNED; ops with a flag are run where its value is the flag
    LIST,
    NULLABLE,  # as TEXT; a length of all ones means null
    TAIL,  # the record may end here
    REST,  # all bytes to the end
    PACKING,  # packing flags of AMQP 0-10, lowest byte first; its shape is the number of fields
    SIZED_PACKING,  # the same after their size
    BYTES,  # as TEXT, and need not be any
    VALUE,  # as TABLE; a length of 0 means null
    FIXED,  # a value of this size, as text
    SIZE,  # as UNSIGNED, and that number of bytes after it, which are skipped
) = range(18)  # fmt: skip

"""What can be wrong with the fields of a record: anomaly codes, as the small integers of the kernels."""

PROBLEM_CODES = (
    "field-overrun",
    "bytes-left-over",
    "table-malformed",
    "table-type-unknown",
    "table-too-deep",
    "text-not-utf8",
    "integer-too-large",
    "traceparent-malformed",
    "flags-unknown",
)
"""The anomaly codes; a problem's code is an index into this."""

(
    FIELD_OVERRUN,
    BYTES_LEFT_OVER,
    TABLE_MALFORMED,
    TABLE_TYPE_UNKNOWN,
    TABLE_TOO_DEEP,
    TEXT_NOT_UTF8,
    INTEGER_TOO_LARGE,
    TRACEPARENT_MALFORMED,
    FLAGS_UNKNOWN,
) = range(len(PROBLEM_CODES))

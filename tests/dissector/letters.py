"""Values of field tables, by hand: a letter and its bytes, and the JSON that they are."""

import math
import struct


def key(name: bytes | str) -> bytes:
    name = name.encode() if isinstance(name, str) else name
    return bytes([len(name)]) + name


def long(data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + data


LETTERS = [
    (b"t\x00", "false"), (b"t\x01", "true"), (b"t\x80", "true"),
    (b"b\x80", "-128"), (b"B\xff", "255"), (b"s\x80\x00", "-32768"), (b"s\x01\x02", "258"), (b"u\xff\xfe", "65534"),
    (b"I\xff\xff\xff\xff", "-1"), (b"I\x80\x00\x00\x00", "-2147483648"), (b"i\xff\xff\xff\xff", "4294967295"),
    (b"l\x7f" + b"\xff" * 7, "9223372036854775807"), (b"l\x80" + b"\x00" * 7, "-9223372036854775808"),
    (b"L" + b"\xff" * 8, "-1"), (b"l\xff\xff\xff\xff\x00\x00\x00\x00", "-4294967296"),
    (b"l\x00\x00\x00\x02\x54\x0b\xe4\x01", "10000000001"), (b"l" + b"\x00" * 8, "0"),
    (b"T" + struct.pack(">Q", 1690000000), '{"$timestamp":1690000000}'),
    (b"T" + b"\xff" * 8, '{"$timestamp":18446744073709551615}'),
    (b"f" + struct.pack(">f", 0.1), "0.1"), (b"f" + struct.pack(">f", 16777216), "16777216.0"),
    (b"f\x7f\x7f\xff\xff", "3.4028235e+38"), (b"f\x00\x00\x00\x01", "1e-45"), (b"f\x80\x00\x00\x00", "-0.0"),
    (b"d" + struct.pack(">d", 0.1), "0.1"), (b"d" + struct.pack(">d", 1e22), "1e+22"),
    (b"d" + struct.pack(">d", 2.0), "2.0"), (b"d" + struct.pack(">d", 5e-324), "5e-324"),
    (b"d" + struct.pack(">d", math.nan), '{"$double":"NaN"}'), (b"f\x7f\xc0\x00\x00", '{"$double":"NaN"}'),
    (b"f\x7f\x80\x00\x00", '{"$double":"Infinity"}'), (b"d\xff\xf0" + b"\x00" * 6, '{"$double":"-Infinity"}'),
    (b"D\x02" + struct.pack(">i", 1234), '{"$decimal":"12.34"}'), (b"D\x00\x00\x00\x00\x07", '{"$decimal":"7"}'),
    (b"D\x02" + struct.pack(">i", -5), '{"$decimal":"-0.05"}'), (b"D\x02\x00\x00\x00\x00", '{"$decimal":"0.00"}'),
    (b"D\xff" + struct.pack(">i", -12), '{"$decimal":"-1.2E-254"}'),
    (b"D\x01\x80\x00\x00\x00", '{"$decimal":"-214748364.8"}'),
    (b"S" + long(b""), '""'), (b"S" + long("größe \U0001f600".encode()), '"größe \U0001f600"'),
    (b"S" + long(b'a"b\\c/\x00\x1f\n\r\t\b\f\x7f'), '"a\\"b\\\\c/\\u0000\\u001f\\n\\r\\t\\b\\f\x7f"'),
    (b"S" + long(b"ok\xff"), '{"$string":"6f6bff"}'), (b"S" + long(b"\x01" * 9 + b"\xed\xa0\x80"),
    '{"$string":"' + "01" * 9 + 'eda080"}'),
    (b"x" + long(b""), '{"$bytes":""}'), (b"x" + long(b"\x00\xabz"), '{"$bytes":"00ab7a"}'),
    (b"V", "null"), (b"A" + long(b""), "[]"), (b"F" + long(b""), "{}"),
    (b"A" + long(b"t\x01VB\x05" + b"A" + long(b"V") + b"F" + long(key("k") + b"V")), '[true,null,5,[null],{"k":null}]'),
    (b"F" + long(key("a") + b"B\x01" + key("b") + b"F" + long(b"") + key("c") + b"V"), '{"a":1,"b":{},"c":null}'),
]  # fmt: skip

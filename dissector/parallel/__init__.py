"""One dissection by several processes: the segments of captures are split by flow, and each part has a `Dissector`."""

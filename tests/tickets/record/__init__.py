"""Records the tickets: reproduced problems of users, each with a twin that shares the symptom but not the cause.

One module per theme holds the scenarios; `stage.py` says what a scenario is. Nodes, clients and capturing are those of
`tests/captures/record`.
"""

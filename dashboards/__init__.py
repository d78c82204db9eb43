"""Pictures and pages from the tables of `dissect` and `analyze`.

Each view is a module: `query` makes the numbers from the tables, `draw` puts them on an axes and knows
nothing of tables, `section` joins both with their words. `amqpscope.dashboards.page.write` makes the page of all views.
Importing this package, or its command, loads neither matplotlib nor Jinja2.
"""

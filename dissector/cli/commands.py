"""The commands `dissect`, `frames` and `handshakes`."""

import argparse
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from amqpscope.dissector.capture.sources import Source


class Dissect:
    """`amqpscope dissect CAPTURE... -o DIR`."""

    name = "dissect"
    help = "write captures as tables: a folder of Parquet (or Arrow) files per table"
    requires: tuple[str, ...] = ()
    extra: str | None = None
    examples = (
        ("dissect trouble.pcap -o tables", "write the tables of a capture under tables/"),
        ("dissect 'day-*.pcap.gz' -o tables --from 17:40 --to 17:45", "five minutes of a rotated capture's first day"),
        ("dissect big.pcap -o tables --keylog keys.log --bodies full", "decrypt TLS, and keep the bodies of messages"),
        ("dissect --follow captures/ -o tables", "go on while tcpdump -G 60 -w 'captures/%s.pcap' writes files"),
    )

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare options and arguments."""
        from amqpscope.dissector.cli import arguments, following  # noqa: PLC0415
        from amqpscope.dissector.tables import output  # noqa: PLC0415

        arguments.add_common(parser, bodies=True)
        parser.add_argument(
            "-o", "--output", metavar="DIR", required=True,
            help="folder for the tables; tables of the same captures in it are replaced",
        )  # fmt: skip
        arguments.add_replace(parser)
        parser.add_argument(
            "--format", choices=output.FORMATS, default="parquet", help="format of the files (default: parquet)"
        )
        parser.add_argument(
            "--compression",
            choices=("zstd", "snappy", "lz4", "none"),
            default=output.CODEC,
            help=f"compression of Parquet files (default: {output.CODEC})",
        )
        parser.add_argument(
            "--jobs", metavar="N", type=arguments.count, default=1,
            help="processes that read the captures together, and dissect their connections (default: 1)",
        )  # fmt: skip
        arguments.add_master(parser, ", with all its cores")
        following.add_arguments(parser)

    def run(self, arguments: argparse.Namespace) -> int:
        """Write the tables.

        Raises:
            ArgumentError: options contradict each other.
        """
        from amqpscope.dissector.cli import arguments as common  # noqa: PLC0415
        from amqpscope.dissector.cli import following  # noqa: PLC0415

        common.check_master(arguments)
        is_followed = following.is_wanted(arguments)
        if arguments.master is not None:
            return self._on_cluster(arguments)
        if is_followed:
            return self._follow(arguments)
        from amqpscope.dissector.cli import progress  # noqa: PLC0415
        from amqpscope.dissector.cli.precompile import compile_kernels  # noqa: PLC0415
        from amqpscope.dissector.cli.program import settle  # noqa: PLC0415
        from amqpscope.dissector.parallel.jobs import Jobs, Target, write  # noqa: PLC0415
        from amqpscope.dissector.places import place  # noqa: PLC0415
        from amqpscope.dissector.reading import Reading  # noqa: PLC0415
        from amqpscope.dissector.tables import origin  # noqa: PLC0415

        settle()
        sources, options, status = common.sources(arguments)
        if arguments.jobs > 1 and any(source.size is None for source in sources):
            raise common.ArgumentError("--jobs is for files: a pipe can be read by one process only")
        made_from = origin.of_captures(sources)
        origin.check(place(arguments.output), made_from, arguments.replace)
        note = origin.note(arguments.captures, (options.from_ns, options.to_ns), made_from)
        target = Target(arguments.output, arguments.format, arguments.compression)

        def so_far() -> tuple[int, int]:
            return len(reading.seen), jobs.rows + reading.rows

        with (
            progress.shown() as advance,
            common.watch(sources) as watch,
            Jobs(arguments.jobs, target) as jobs,
        ):
            compile_kernels(sources)
            read = progress.reading(advance, sources, so_far)
            reading = Reading(sources, options, read, watch=watch, make=jobs.make)
            rows = write(reading, jobs, target, note)
        frames = common.print_written(arguments.output, rows)
        return common.print_warnings(reading, arguments.tz, frames) or status

    def _follow(self, arguments: argparse.Namespace) -> int:
        """Write the tables of a directory that a capture rotates into."""
        from amqpscope.dissector.cli import arguments as common  # noqa: PLC0415
        from amqpscope.dissector.cli import following  # noqa: PLC0415
        from amqpscope.dissector.following.loop import Dissected  # noqa: PLC0415
        from amqpscope.dissector.tables.rows import schemas  # noqa: PLC0415

        options = common.options(arguments)
        form = arguments.format, arguments.compression
        return following.run(arguments, options, schemas(options.protocol), Dissected, *form)

    def _on_cluster(self, arguments: argparse.Namespace) -> int:
        """Have a package that knows clusters write the tables."""
        from importlib.metadata import entry_points  # noqa: PLC0415

        from amqpscope.dissector.cli.arguments import ArgumentError  # noqa: PLC0415

        if arguments.jobs > 1:
            raise ArgumentError("--jobs is for this machine without Spark, --master for Spark: give one of them")
        (dissect,) = entry_points(group="amqpscope.clusters", name="dissect")
        status: int = dissect.load()(arguments)
        return status


class Frames:
    """`amqpscope frames CAPTURE...`."""

    name = "frames"
    help = "print each frame on one line as it is decoded"
    requires: tuple[str, ...] = ()
    extra: str | None = None
    examples = (
        ("frames trouble.pcap --connection 10.0.3.7:41418 --method 'basic.*'", "messages of one client"),
        ("frames trouble.pcap --queue orders -c 20 --tz local", "the first 20 frames that name a queue, in local time"),
        ("frames trouble.pcap --format json | jq .method", "for other programs; ids and times in ns are text"),
        ("frames -", "live: tcpdump -i any -U -w - port 5672 | amqpscope frames -"),
    )

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare options and arguments."""
        from amqpscope.dissector.cli import arguments, selection  # noqa: PLC0415

        arguments.add_common(parser)
        parser.add_argument(
            "--format", choices=("text", "json", "csv"), default="text", help="format of the lines (default: text)"
        )
        arguments.add_schema(parser)
        selection.add_arguments(parser)

    def run(self, arguments: argparse.Namespace) -> int:
        """Print the frames."""
        from amqpscope.dissector.cli import arguments as common  # noqa: PLC0415
        from amqpscope.dissector.cli.precompile import compile_kernels  # noqa: PLC0415
        from amqpscope.dissector.cli.printers import PRINTERS, Peers  # noqa: PLC0415
        from amqpscope.dissector.cli.selection import Selection  # noqa: PLC0415
        from amqpscope.dissector.formatting import counted  # noqa: PLC0415
        from amqpscope.dissector.reading import Reading  # noqa: PLC0415

        sources, options, status = common.sources(arguments)
        compile_kernels(sources)
        with common.watch(sources) as watch:
            reading = Reading(sources, options, watch=watch)
            if watch:
                watch.look = common.held_back_printer(reading)
            peers, wanted = Peers(reading.dissector), Selection.of(arguments)
            printer = PRINTERS[arguments.format](sys.stdout, peers, arguments.tz, options.protocol)
            frames = left_out = 0
            for table, batch in reading:
                if table.endswith("_frames"):
                    printer.look(table, batch)
                    chosen = wanted.take(batch, peers, printer.views[table])
                    if arguments.count is not None:
                        chosen = chosen.slice(0, arguments.count - frames)
                    left_out += batch.num_rows - chosen.num_rows
                    frames += chosen.num_rows
                    printer.frames(table, chosen)
                    sys.stdout.flush()
                    if frames == arguments.count:
                        break
        status = common.print_warnings(reading, arguments.tz, frames + left_out) or status
        if left_out and not frames:
            sys.stderr.write(f"amqpscope: none of {counted(left_out, 'frame')} matches the selection\n")
        return status


class Handshakes:
    """`amqpscope handshakes CAPTURE...|DIR`."""

    name = "handshakes"
    help = "say why connections came up or did not: one verdict each, with the packets that prove it"
    requires: tuple[str, ...] = ()
    extra: str | None = None
    examples = (
        ("handshakes trouble.pcap", "a verdict on each connection, worst first, with what to do"),
        ("handshakes trouble.pcap --connection 10.0.3.7:41418", "both sides of a handshake, step by step"),
        ("handshakes trouble.pcap --fail-on handshake --fail-on ending:error", "for scripts: status 1 on these"),
    )

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare options and arguments."""
        from amqpscope.dissector.cli import arguments, selection  # noqa: PLC0415
        from amqpscope.dissector.cli.options import suggest  # noqa: PLC0415

        arguments.add_common(parser)
        parser.add_argument(
            "--format", choices=("text", "json", "csv"), default="text", help="format of the output (default: text)"
        )
        parser.add_argument(
            "--top", metavar="N", type=arguments.count, help="only the N worst lines (text), or connections (json, csv)"
        )
        arguments.add_schema(parser)
        selection.add_connection(parser)
        fail_on = parser.add_argument(
            "--fail-on", metavar="WHAT[:SEVERITY]", action="append", default=[], type=selection.fail_on,
            help="exit with status 1 when a connection failed (handshake), or one that came up ended badly (ending); "
            "with note, warning or error: of this severity or worse. 2 when there are no packets, or no connections "
            "between --from and --to",
        )  # fmt: skip
        suggest(fail_on, selection.fails)

    def run(self, arguments: argparse.Namespace) -> int:
        """Print the verdicts.

        Raises:
            VerdictError: no connection matches --connection, or the tables hold no verdicts.
        """
        import json  # noqa: PLC0415
        from dataclasses import replace  # noqa: PLC0415

        from amqpscope.dissector.cli import arguments as common  # noqa: PLC0415
        from amqpscope.dissector.cli import verdict_groups, verdict_rows  # noqa: PLC0415
        from amqpscope.dissector.cli.precompile import compile_kernels  # noqa: PLC0415
        from amqpscope.dissector.cli.selection import names_of  # noqa: PLC0415
        from amqpscope.dissector.formatting import clean, exact  # noqa: PLC0415
        from amqpscope.dissector.handshakes import ladder, listing  # noqa: PLC0415
        from amqpscope.dissector.reading import Reading  # noqa: PLC0415
        from amqpscope.spec import handshakes  # noqa: PLC0415

        known, zone, wanted = handshakes.load(), arguments.tz, frozenset(arguments.connection)
        made = listing.Listing(known, zone)
        folder = verdict_rows.tables_at(arguments.captures)
        sources: list[Source] = []
        if folder:
            options, status = common.options(arguments, verdict_rows.begin_ns(folder)), 0
        else:
            sources, options, status = common.sources(arguments)
        options, is_text = replace(options, handshakes=True), arguments.format == "text"
        kept = []
        with common.watch(sources) as watch:
            found = folder or Reading(sources, options, watch=watch)
            if isinstance(found, Reading) and found.compiled:
                compile_kernels(sources)
            for row in verdict_rows.rows(found, options):
                if wanted and wanted.isdisjoint(names_of(row["connection_id"], listing.ends_of(row))):
                    continue
                made.add(row)
                if wanted or not is_text:
                    kept.append(row)
        if wanted and not kept:
            raise verdict_rows.VerdictError(f"no connection with the id or address {clean(', '.join(sorted(wanted)))}")
        if not is_text:
            document = made.document(kept)
            document["connections"] = document["connections"][: arguments.top]
            if arguments.format == "csv":
                verdict_rows.write_csv(sys.stdout, document["connections"])
            else:
                print(json.dumps(exact(document), ensure_ascii=False, indent=1))
        elif wanted:
            print("\n\n".join("\n".join(ladder.lines(row, known, zone)).rstrip() for row in kept[: arguments.top]))
        else:
            print("\n".join([*verdict_groups.lines(made), *made.lines(arguments.top or listing.LINES)]))
        if isinstance(found, Reading):
            status = common.print_warnings(found, arguments.tz) or status
        is_outside = made.is_empty and any(common.wanted_times(arguments))
        if arguments.fail_on and (is_outside or not verdict_rows.packets(found)):
            return 2
        return status or int(any(made.failing(*what) for what in arguments.fail_on))

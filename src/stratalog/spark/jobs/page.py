"""A report as one self-contained HTML page, light or dark by the reader's setting."""

from __future__ import annotations

from html import escape

from stratalog.spark.jobs.charts import (
    Line,
    bars,
    bytes_text,
    count_text,
    duration_text,
    histogram,
    lines,
    spark_line,
    time_text,
)
from stratalog.spark.jobs.outline import Durations, StoreReport, TopicReport

# With more topics than this, only the largest are expanded.
_OPEN_MAX = 6
_GAPS_SHOWN = 20

_STYLE = """
:root { color-scheme: light dark; --page: #fafafa; --card: #fff; --text: #1b1f24; --dim: #656d76;
  --rule: #e3e6ea; --one: #2563eb; --two: #c2410c; --three: #0f766e; --warn: #9a3412; }
@media (prefers-color-scheme: dark) { :root { --page: #14171b; --card: #1c2026; --text: #e6e9ed;
  --dim: #9aa4af; --rule: #30363d; --one: #6ea8fe; --two: #ffa657; --three: #56d4c0;
  --warn: #ffb385; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 2rem 1.25rem 4rem; max-width: 75rem; background: var(--page);
  color: var(--text); font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.5rem; margin: 0; } h2 { font-size: 1.15rem; margin: 0; display: inline; }
h3 { font-size: .9rem; margin: 0 0 .25rem; font-weight: 600; }
p.about, .dim { color: var(--dim); } p.about { margin: .25rem 0 1.5rem; }
.facts { display: flex; flex-wrap: wrap; gap: .5rem 2.25rem; margin: 1rem 0 1.5rem; }
.facts div span { display: block; color: var(--dim); font-size: .8rem; }
.facts div b { font-size: 1.15rem; font-weight: 600; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th { font-size: .8rem; color: var(--dim); font-weight: 500; text-align: left; }
th, td { padding: .35rem .75rem .35rem 0; border-bottom: 1px solid var(--rule);
  white-space: nowrap; } .right { text-align: right; }
details { background: var(--card); border: 1px solid var(--rule); border-radius: .6rem;
  padding: 1rem 1.25rem; margin: 1rem 0; } summary { cursor: pointer; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 26rem), 1fr));
  gap: 1.5rem 2rem; margin-top: 1rem; } figure { margin: 0; min-width: 0; }
svg { width: 100%; height: auto; display: block; } svg.spark { width: 120px; height: 22px; }
.tick { fill: var(--dim); font-size: 11px; } .rule { stroke: var(--rule); }
.bar { fill: var(--one); } .bar:hover { fill: var(--two); }
.line { fill: none; stroke-width: 1.5; stroke-linejoin: round; }
.line.one { stroke: var(--one); } .line.two { stroke: var(--two); }
.dot { opacity: 0; } .dot:hover { opacity: 1; } .dot.one { fill: var(--one); }
.dot.two { fill: var(--two); }
.key { font-size: .8rem; color: var(--dim); margin: .1rem 0 0; }
.key i { display: inline-block; width: .9rem; height: .2rem; margin: 0 .3rem .2rem .8rem;
  vertical-align: middle; } .key i:first-child { margin-left: 0; }
i.one { background: var(--one); } i.two { background: var(--two); }
.shares td:first-child { width: 40%; max-width: 14rem; overflow: hidden; text-overflow: ellipsis;
  font-family: ui-monospace, monospace; font-size: .85rem; }
.shares td { border: 0; padding: .1rem .75rem .1rem 0; } .shares .share { width: 35%; }
.share div { background: var(--one); height: .6rem; border-radius: .2rem; min-width: 1px; }
.warn { color: var(--warn); }
"""


def render(report: StoreReport) -> str:
    """Render the page."""
    by_size = sorted(report.topics, key=lambda topic: -topic.bytes)
    unfolded = {topic.id for topic in by_size[:_OPEN_MAX]}
    sections = [_topic(topic, report, is_open=topic.id in unfolded) for topic in report.topics]
    title = report.path.rstrip("/").rpartition("/")[2]
    return (
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)} - Stratalog report</title><style>{_STYLE}</style></head><body>"
        f"<h1>{escape(title)}</h1>"
        f'<p class="about">{escape(report.path)} as of {time_text(report.made_at)} UTC</p>'
        f"{_store_facts(report)}{_overview(report)}{''.join(sections)}</body></html>\n"
    )


def _facts(facts: list[tuple[str, str]]) -> str:
    cells = "".join(f"<div><span>{escape(name)}</span><b>{text}</b></div>" for name, text in facts)
    return f'<div class="facts">{cells}</div>'


def _store_facts(report: StoreReport) -> str:
    raw = sum(topic.raw_bytes for topic in report.topics)
    missing = sum(gap.last - gap.first + 1 for topic in report.topics for gap in topic.gaps)
    return _facts(
        [
            ("topics", f"{len(report.topics):,}"),
            ("records", f"{report.records:,}"),
            ("on disk", bytes_text(report.bytes)),
            ("compression", f"{raw / report.bytes:.2f} to 1" if report.bytes else "-"),
            ("missing records", f"{missing:,}"),
        ]
    )


def _overview(report: StoreReport) -> str:
    headings = (
        ("topic", ""), ("records", "right"), ("size", "right"), ("ratio", "right"), ("volume", ""),
        ("last record", ""), ("gaps", "right"),
    )  # fmt: skip
    head = "".join(f'<th class="{kind}">{name}</th>' for name, kind in headings)
    rows = []
    for topic in report.topics:
        newest = time_text(topic.newest) if topic.newest else "-"
        gaps = f'<span class="warn">{len(topic.gaps)}</span>' if topic.gaps else "0"
        rows.append(
            f'<tr><td><a href="#t{topic.id}">{escape(topic.name)}</a></td>'
            f'<td class="right">{topic.records:,}</td>'
            f'<td class="right">{bytes_text(topic.bytes)}</td>'
            f'<td class="right">{topic.ratio:.2f}</td>'
            f"<td>{spark_line([span.records for span in topic.spans])}</td>"
            f'<td>{newest}</td><td class="right">{gaps}</td></tr>'
        )
    return f'<div class="scroll"><table><tr>{head}</tr>{"".join(rows)}</table></div>'


def _topic(topic: TopicReport, report: StoreReport, *, is_open: bool) -> str:
    stored = f"{topic.segments:,} segments"
    stored += f" ({topic.cold_segments:,} cold)" if topic.cold_segments else ""
    seconds = (topic.newest - topic.oldest) / 1e9
    facts = [
        ("records", f"{topic.records:,}"),
        ("offsets", f"{topic.earliest:,} to {topic.next_offset - 1:,}" if topic.records else "-"),
        ("on disk", bytes_text(topic.bytes)),
        ("compression", f"{topic.ratio:.2f} to 1 ({escape(topic.compression)})"),
        ("in", stored),
        ("not in a segment yet", bytes_text(topic.log_bytes)),
        ("deleted", f"{topic.deleted:,}"),
        ("dead on disk", f"{topic.dead:,}"),
        ("average rate", f"{count_text(topic.records / seconds)}/s" if seconds > 0 else "-"),
    ]
    for name, count in (
        ("keys", topic.living), ("series", topic.series), ("points", topic.points),
    ):  # fmt: skip
        if count is not None:
            facts.insert(0, (name, f"{count:,}"))
    kind = f" ({topic.kind})" if topic.kind != "topic" else ""
    figures = _figures(topic, report) if topic.records else ""
    return (
        f'<details id="t{topic.id}"{" open" if is_open else ""}><summary>'
        f"<h2>{escape(topic.name)}{kind}</h2></summary>{_facts(facts)}{_gaps(topic)}{_groups(topic)}"
        f'<div class="charts">{figures}</div></details>'
    )


def _figures(topic: TopicReport, report: StoreReport) -> str:
    times = [span.start for span in topic.spans]
    width = round(topic.span_seconds * 10**9)
    per = duration_text(width)
    figures = [
        _figure(
            f"Records per {per}",
            bars(times, width, [span.records for span in topic.spans], count_text),
        ),
        _figure(
            f"Bytes of values per {per}",
            bars(times, width, [span.bytes for span in topic.spans], bytes_text),
        ),
    ]
    if topic.interval.count:
        drawn = [
            Line("half within", [span.interval_p50 for span in topic.spans], "one"),
            Line("99 % within", [span.interval_p99 for span in topic.spans], "two"),
        ]
        chart = lines(times, width, drawn, duration_text)
        figures.append(_figure("Time between appends", chart, _legend(topic.interval)))
    if report.time_header is not None and topic.delay.count:
        drawn = [
            Line("half within", [span.delay_p50 for span in topic.spans], "one"),
            Line("99 % within", [span.delay_p99 for span in topic.spans], "two"),
        ]
        title = f"Latency: from header {report.time_header} to the record's time"
        chart = lines(times, width, drawn, duration_text)
        figures.append(_figure(title, chart, _legend(topic.delay)))
    labels = [bytes_text(one.low) for one in topic.sizes]
    abouts = [
        f"{bytes_text(one.low)} to {bytes_text(one.high)}: {one.records:,} records"
        for one in topic.sizes
    ]
    sizes = histogram(labels, [one.records for one in topic.sizes], abouts)
    note = (
        f"half within {bytes_text(topic.size_p50)}, 99 % within {bytes_text(topic.size_p99)}, "
        f"largest {bytes_text(topic.size_max)}; {topic.nulls:,} without a value"
    )
    figures.append(_figure("Size of values", sizes, f'<p class="key">{note}</p>'))
    if topic.keys.records:
        figures.append(_keys(topic))
    return "".join(figures)


def _figure(title: str, chart: str, below: str = "") -> str:
    return f"<figure><h3>{escape(title)}</h3>{chart}{below}</figure>"


def _legend(times: Durations) -> str:
    return (
        f'<p class="key"><i class="one"></i>half within {duration_text(times.p50)}'
        f'<i class="two"></i>99 % within {duration_text(times.p99)}, '
        f"longest {duration_text(times.longest)}</p>"
    )


def _keys(topic: TopicReport) -> str:
    keys = topic.keys
    largest = keys.top[0].share if keys.top else 1.0
    rows = "".join(
        f'<tr><td title="{escape(one.key)}">{escape(one.key)}</td>'
        f'<td class="share"><div style="width: {100 * one.share / largest:.1f}%"></div></td>'
        f'<td class="right">{one.records:,}</td><td class="right">{100 * one.share:.2f} %</td></tr>'
        for one in keys.top[:12]
    )
    first_ten = sum(one.share for one in keys.top[:10])
    note = (
        f"{keys.distinct:,} keys in {keys.records:,} records; the ten most frequent are "
        f"{100 * first_ten:.1f} % of them"
    )
    table = f'<table class="shares">{rows}</table>'
    return _figure("Most frequent keys", table, f'<p class="key">{note}</p>')


def _groups(topic: TopicReport) -> str:
    if not topic.groups:
        return ""
    names = ("consumer group", "mode", "lag", "held", "acknowledged below", "time lag")
    head = "".join(f"<th>{name}</th>" for name in names)
    rows = "".join(
        f"<tr><td>{escape(one.name) or 'the queue'}</td><td>{escape(one.mode)}</td>"
        f"<td>{one.lag:,}</td><td>{one.pending:,}</td><td>{one.floor:,}</td>"
        f"<td>{duration_text(one.seconds * 1e9) if one.lag else '-'}</td></tr>"
        for one in topic.groups
    )
    return f'<div class="scroll"><table><tr>{head}</tr>{rows}</table></div>'


def _gaps(topic: TopicReport) -> str:
    if not topic.gaps:
        return ""
    texts = [
        f"{gap.first:,} to {gap.last:,} ({escape(gap.reason)})" for gap in topic.gaps[:_GAPS_SHOWN]
    ]
    more = len(topic.gaps) - _GAPS_SHOWN
    tail = f" and {more:,} more" if more > 0 else ""
    return f'<p class="warn">Missing offsets: {"; ".join(texts)}{tail}</p>'

"""Whether a file is a Chrome trace by the letter of the Trace Event Format, and one that keeps what docs/traces.md says.

    python3 tests/tools/chrome_trace.py trace.json.gz        a JSON object with what is in it; exit code 1 and the first fault
"""
import bisect
import collections
import gzip
import json
import sys

NEEDED = {"X": {"ts", "dur"}, "i": {"ts", "s"}, "C": {"ts", "args"}, "b": {"ts", "id", "cat"}, "e": {"ts", "id", "cat"},
          "s": {"ts", "id", "cat"}, "f": {"ts", "id", "cat", "bp"}, "M": {"args"}}
EPSILON = 1.5e-3  # us: three digits are written


class Fault(Exception):
    pass


def expect(condition, what, event=None):
    if not condition:
        raise Fault(f"{what}: {event}" if event else what)


def track(event):
    return event["pid"], event["tid"]


def check_fields(events):
    for event in events:
        phase = event.get("ph")
        expect(phase in NEEDED, "an unknown phase", event)
        expect(NEEDED[phase] | {"name", "pid", "tid"} <= event.keys(), "a field is missing", event)
        expect(isinstance(event["name"], str) and event["name"] != "", "no name", event)
        expect(isinstance(event["pid"], int) and isinstance(event["tid"], int), "pid and tid are whole numbers", event)
        expect(phase == "M" or event["ts"] >= 0, "time before 0", event)
        expect(event.get("dur", 0) >= 0, "a duration below 0", event)
        if phase == "C":
            expect(all(isinstance(value, (int, float)) for value in event["args"].values()), "a counter is a number", event)


def check_order(events):
    last = {}
    for event in events:
        if event["ph"] != "M":
            expect(event["ts"] >= last.get(event["pid"], 0), "timestamps of a process go back", event)
            last[event["pid"]] = event["ts"]


def check_nesting(events):
    """Spans of a thread are apart or one lies in the other; async ones of an id, too, and each has its end."""
    spans = collections.defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            spans[track(event)].append((event["ts"], -event["dur"], event))
    for on_track in spans.values():
        ends = []
        for start, negative, event in sorted(on_track, key=lambda span: span[:2]):
            while ends and ends[-1] <= start + EPSILON:
                ends.pop()
            expect(not ends or start - negative <= ends[-1] + EPSILON, "spans of a thread overlap", event)
            ends.append(start - negative)
    opened = collections.defaultdict(list)
    for event in events:
        key = (event["pid"], event.get("cat"), event.get("id"))
        if event["ph"] == "b":
            opened[key].append(event["name"])
        elif event["ph"] == "e":
            expect(opened[key] and opened[key].pop() == event["name"], "an end without its begin", event)
    expect(not any(opened.values()), f"begun and never ended: {[names for names in opened.values() if names][:1]}")


def span_finder(events):
    """Whether an event lies within a span of its thread."""
    starts = collections.defaultdict(list)
    last_end = collections.defaultdict(list)  # of the spans up to this one
    for event in sorted((e for e in events if e["ph"] == "X"), key=lambda e: e["ts"]):
        ends = last_end[track(event)]
        ends.append(max(event["ts"] + event["dur"], ends[-1] if ends else 0))
        starts[track(event)].append(event["ts"])

    def lies_in_span(event):
        at = bisect.bisect_right(starts[track(event)], event["ts"] + EPSILON)
        return at > 0 and last_end[track(event)][at - 1] >= event["ts"] - EPSILON

    return lies_in_span


def check_arrows(events):
    """One tail and one head each, forward in time, both in a span; returns those between ranks."""
    ends = collections.defaultdict(lambda: {"s": [], "f": []})
    for event in events:
        if event["ph"] in "sf":
            ends[event["cat"], event["id"]][event["ph"]].append(event)
    lies_in_span = span_finder(events)
    between = 0
    for arrow in ends.values():
        expect(len(arrow["s"]) == 1 and len(arrow["f"]) == 1, "an arrow has one tail and one head", arrow)
        tail, head = arrow["s"][0], arrow["f"][0]
        expect(tail["ts"] <= head["ts"], "an arrow goes back in time", arrow)
        between += tail["pid"] != head["pid"]
        for event in (head,) if tail["cat"] == "message" else (tail, head):
            expect(lies_in_span(event), "in no span", event)
    return between


def check_names(events):
    """Every process and thread is named; {pid: {tid: name}}."""
    processes = {e["pid"]: e["args"]["name"] for e in events if e["ph"] == "M" and e["name"] == "process_name"}
    threads = {track(e): e["args"]["name"] for e in events if e["ph"] == "M" and e["name"] == "thread_name"}
    for event in events:
        if event["ph"] != "M":
            expect(event["pid"] in processes, "its process has no name", event)
            expect(track(event) in threads, "its thread has no name", event)
    return processes, threads


def check_window(trace, events):
    """Nothing lies outside, on any thread; the steps are whole, and each rank has the same."""
    other = trace["otherData"]
    begin, end = other["begin_ns"] / 1000, other["end_ns"] / 1000
    for event in events:
        if event["ph"] != "M":
            expect(begin - EPSILON <= event["ts"] and event["ts"] + event.get("dur", 0) <= end + EPSILON,
                   f"outside of the window {begin} to {end}", event)
    steps = collections.defaultdict(list)
    for event in events:
        if event["ph"] == "i" and event["cat"] == "step":
            steps[event["pid"]].append(event["args"]["step"])
            expect(event["name"] == f"step {event['args']['step']}", "a step is called by its number", event)
    expected = list(range(other["first_step"], other["last_step"] + 1))
    expect(expected and all(numbers == expected for numbers in steps.values()),
           f"steps {dict(steps)}, and the window says {other['window']}")
    return expected


def check(trace):
    expect(isinstance(trace, dict) and isinstance(trace.get("traceEvents"), list), "it has no traceEvents")
    events = trace["traceEvents"]
    check_fields(events)
    check_order(events)
    check_nesting(events)
    between = check_arrows(events)
    processes, threads = check_names(events)
    steps = check_window(trace, events)
    return {"processes": sorted(processes.values()), "threads": sorted(set(threads.values())), "steps": [steps[0], steps[-1]],
            "between_ranks": between, "events": len(events),
            "spans": sorted({e["name"] for e in events if e["ph"] == "X"}),
            "tracks": sorted({(threads[track(e)], e["name"].split(" [")[0]) for e in events if e["ph"] == "X"})}


def main():
    try:
        with gzip.open(sys.argv[1], "rt", encoding="utf-8") as file:
            print(json.dumps(check(json.load(file))))
    except Fault as fault:
        sys.exit(f"{fault}")


if __name__ == "__main__":
    main()

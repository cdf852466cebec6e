#!/usr/bin/env python3
"""Writes docs/compliance.md: which parts of the InfiniBand specification are implemented and
tested where, collected from citations in comments.

usage: scripts/compliance.py              writes docs/compliance.md
       scripts/compliance.py --check      fails if the file is not up to date
       scripts/compliance.py --normalise [PATH...]
                                          rewrites citations of other styles, below these paths

A citation is "IBA" and one or several sections or compliance statements:

    /// PathRecord, 64 bytes (IBA 15.2.5.16).
    // The other fields mean nothing while the port is down (IBA 14.2.5.6, C14-24.2.1).

In a doc comment it belongs to the item documented, elsewhere to the function around it. A citation
in a test module or a test file counts as tested, any other as implemented.
"""

import re
import subprocess
import sys
import textwrap
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OUTPUT = ROOT / "docs" / "compliance.md"

STATEMENT = r"[Co]\d+-\d+(?:[.-][\dx]+)*"
SECTION = r"(?:[3-9]|1\d|20|A\d+)(?:\.\d+)+"
PART = rf"(?:{STATEMENT}|{SECTION}|chapter \d+|annex A\d+)"
CITATION = re.compile(rf"\bIBA ({PART}(?:(?:, | and ){PART})*)")
TOKEN = re.compile(rf"\b{PART}\b(?![\w-]|\.\d)")
# A citation without "IBA": in parentheses, first there or behind a comma.
OLD = re.compile(rf"(?:(?<=\()|(?<=, )|(?<=; )){PART}(?=[,;)])")
ITEM = re.compile(
    r'(?:pub(?:\([^)]*\))? )?(?:default |const |unsafe |async |extern "C" )*'
    r"(fn|struct|enum|trait|mod|const|static|type|union|macro_rules!) ([A-Za-z_]\w*)"
)
IMPL = re.compile(r"(?:unsafe )?impl\b(?:<.*?>(?= ))? ?(?:.* for )?(?:\w+::)*(\w+)")
FIELD = re.compile(r"([A-Za-z_]\w*)\s*(?:[:,=({]|$)")

# Subjects of sections, where no comment states them as briefly.
SUBJECTS = {
    "chapter 4": "Addressing",
    "4.1.1": "GUIDs and GIDs",
    "4.1.3": "Subnet prefix",
    "7.2.7": "Link states",
    "7.6.6": "SL-to-VL mapping",
    "7.6.9": "VL arbitration",
    "8.3": "Global route header",
    "10.9": "Partitioning",
    "10.9.2": "P_Key tables of ports",
    "10.9.3": "P_Key matching",
    "10.9.3.1.3": "P_Key enforcement by switches",
    "13.4.2": "MAD format",
    "13.4.3": "MAD header",
    "13.4.4": "Management classes",
    "13.4.5": "Methods",
    "13.4.7": "Status",
    "13.4.8": "Attributes common to all classes",
    "13.4.8.1": "ClassPortInfo",
    "13.4.8.2": "Notice",
    "13.4.8.3": "InformInfo",
    "13.4.11": "Event forwarding",
    "13.5.1": "Redirection",
    "13.6": "RMPP",
    "13.6.2": "RMPP header",
    "13.6.2.1": "RMPP header: fields and codes",
    "13.6.6": "RMPP: double-sided transfers",
    "14.2": "Subnet management class",
    "14.2.1.1": "LID-routed SMP",
    "14.2.1.2": "Directed-route SMP",
    "14.2.2": "Directed routes",
    "14.2.4": "M_Key",
    "14.2.5": "Attributes of the SM class",
    "14.2.5.1": "Notices and traps of the SM class",
    "14.2.5.2": "NodeDescription",
    "14.2.5.3": "NodeInfo",
    "14.2.5.4": "SwitchInfo",
    "14.2.5.5": "GUIDInfo",
    "14.2.5.6": "PortInfo",
    "14.2.5.7": "P_KeyTable",
    "14.2.5.8": "SLtoVLMappingTable",
    "14.2.5.9": "VLArbitrationTable",
    "14.2.5.10": "LinearForwardingTable",
    "14.2.5.11": "RandomForwardingTable",
    "14.2.5.12": "MulticastForwardingTable",
    "14.2.5.13": "SMInfo",
    "14.2.5.14": "VendorDiag",
    "14.2.5.15": "LedInfo",
    "14.4.1": "Mastership of subnet managers",
    "14.4.4": "LID assignment",
    "14.4.10": "Traps to the subnet manager",
    "15.2": "Subnet administration class",
    "15.2.1.1": "SA header",
    "15.2.2": "Methods of the SA class",
    "15.2.5": "Attributes of the SA class",
    "15.2.5.2": "NodeRecord",
    "15.2.5.3": "PortInfoRecord",
    "15.2.5.4": "SLtoVLMappingTableRecord",
    "15.2.5.5": "SwitchInfoRecord",
    "15.2.5.6": "LinearForwardingTableRecord",
    "15.2.5.7": "RandomForwardingTableRecord",
    "15.2.5.8": "MulticastForwardingTableRecord",
    "15.2.5.9": "VLArbitrationTableRecord",
    "15.2.5.10": "SMInfoRecord",
    "15.2.5.11": "P_KeyTableRecord",
    "15.2.5.12": "InformInfoRecord",
    "15.2.5.13": "LinkRecord",
    "15.2.5.14": "ServiceRecord",
    "15.2.5.15": "ServiceAssociationRecord",
    "15.2.5.16": "PathRecord",
    "15.2.5.17": "MCMemberRecord",
    "15.2.5.17.2": "MCMemberRecord: access restrictions",
    "15.2.5.18": "GUIDInfoRecord",
    "15.2.5.19": "TraceRecord",
    "15.2.5.20": "MultiPathRecord",
    "16.1": "Performance management class",
    "16.1.3.5": "PortCounters",
    "16.1.4.11": "PortCountersExtended",
    "C10-116": "P_Keys: validity",
    "C13-32.1.2": "Event forwarding: address of reports",
    "C14-9": "Directed-route SMP: processing of requests",
    "C14-13": "Directed-route SMP: processing of responses",
    "C14-24.1.1.5": "GUIDInfo: assignment of GUIDs",
    "C14-38.1.1": "Set(SMInfo): controls, and refusal of invalid transitions",
    "C14-44": "M_Key: report of ports with an unknown one",
    "C14-60.2.1": "Mastership: a master waits for one of lower rank to hand over",
    "C14-62.1.1.11": "PortInfo: VLHighLimit goes with VL arbitration",
    "C14-62.1.1.22": "GUIDInfo: set by the subnet manager",
    "C14-72.1.1": "Trap 64: port in service",
    "C14-72.1.2": "Trap 65: port out of service",
    "C15-0.1.5": "SM_Key in requests and answers",
    "C15-0.1.8.7": "GetMulti: for MultiPathRecord only",
    "C15-0.1.13": "ServiceRecord: partition of requester and service",
    "C15-0.1.14": "ServiceRecord: ServiceKey",
    "C15-0.1.21": "Records: partition shared with the requester",
    "C15-0.1.23.2": "P_KeyTableRecord: for trusted requesters",
    "C15-0.1.23.4": "InformInfoRecord: QPN for trusted requesters only",
    "C15-0.1.27": "Component masks: numbers of components",
    "C15-0.1.30": "Get: error if several records match",
    "o13-2.1.1": "InformInfo: QPN of an unsubscription",
    "o13-12.1.1": "InformInfo: the answer repeats the request",
    "o14-12.1.11": "Traps 66 and 67: multicast group created, deleted",
    "o15-0.1.8": "MCMemberRecord: creation with parameters that cannot be met",
    "o15-0.1.13": "MCMemberRecord: join of a group that the port cannot use",
    "o15-0.2.7": "MultiPathRecord: answered with PathRecords",
    "C14-24.2.1": "PortInfo of a port that is down: only the states are valid",
    "annex A10": "Congestion control",
    "A10.2.2.1.1": "CongestionControlTable: entries",
    "A10.4.1": "MADs of the congestion control class",
    "A10.4.3.3": "CongestionInfo",
    "A10.4.3.4": "CongestionKeyInfo",
    "A10.4.3.5": "CongestionLog",
    "A10.4.3.6": "SwitchCongestionSetting",
    "A10.4.3.7": "SwitchPortCongestionSetting",
    "A10.4.3.8": "CACongestionSetting",
    "A10.4.3.9": "CongestionControlTable",
    "A10.4.3.10": "TimeStamp",
    "C15-0.2-1.16": "InformInfo: restricted to trusted requesters",
    "o13-13.1.1": "InformInfo: refusal of a subscription",
    "o13-14.1.1": "InformInfo: partition shared with the sources",
    "o13-17.1.1": "Event forwarding: partition shared with the source",
    "o15-0.1.x": "MCMemberRecord: join and leave",
    "o15-0.2.x": "MCMemberRecord: groups and their members",
    "o15-0.1.5": "MCMemberRecord: valid MGIDs",
    "o15-0.1.14": "MCMemberRecord: leave",
    "o15-0.2.1": "MCMemberRecord: ProxyJoin",
    "o15-0.2.3": "MCMemberRecord: parameters of a new group",
    "o15-0.2.4": "MCMemberRecord: parameters that must agree with the group",
}


def main(arguments):
    files = sources()
    match arguments:
        case ["--normalise", *below]:
            below = [Path(path).resolve() for path in below or [ROOT]]
            for path in files:
                if any(path.is_relative_to(base) for base in below):
                    normalise(path)
        case [] | ["--check"]:
            text = render(files)
            if arguments and (not OUTPUT.exists() or OUTPUT.read_text() != text):
                sys.exit("docs/compliance.md is not up to date: run scripts/compliance.py")
            if not arguments:
                OUTPUT.write_text(text)
        case _:
            sys.exit(__doc__)


def sources():
    command = ["git", "-C", str(ROOT), "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command + ["*.rs"], check=True, capture_output=True, text=True)
    paths = (ROOT / line for line in listed.stdout.splitlines())
    return sorted(path for path in paths if path.is_file())


# --- Reading sources.


class Comment:
    """Consecutive comment lines."""

    def __init__(self, first, last, kind, text):
        self.first, self.last, self.kind, self.text = first, last, kind, text


def comments(lines):
    """Comments of a file; those at the end of a line of code are separate."""
    block = None
    for number, line in enumerate(lines):
        found = re.match(r"\s*(//!|///|//)(?!/) ?(.*)", line)
        if found and block and block.kind == found[1] and block.last == number - 1:
            block.last, block.text = number, f"{block.text} {found[2]}"
            continue
        if block:
            yield block
        block = Comment(number, number, found[1], found[2]) if found else None
        trailing = None if found else re.search(r"[;{}),] // (.*)", line)
        if trailing:
            yield Comment(number, number, "//", trailing[1])
    if block:
        yield block


def parts(text):
    """Sections and statements that a text cites, in either style."""
    cited = [part for found in CITATION.finditer(text) for part in TOKEN.findall(found[1])]
    return list(dict.fromkeys(cited + [found[0] for found in old_citations(text)]))


def old_citations(text):
    """Matches of citations without "IBA"."""
    for group in re.finditer(r"\([^()]*\)?", text):
        if "IBA " not in group[0]:
            end = group.end()
            yield from (found for found in OLD.finditer(text, group.start()) if found.end() <= end)


def indent(line):
    return len(line) - len(line.lstrip())


def item(lines, comment):
    """Name of the item that a comment belongs to; None for a module."""
    if comment.kind == "//!":
        return None
    at = comment.last
    if comment.kind == "///":
        at += 1
        while at < len(lines) and re.match(r"\s*(#|//|$|[^#]*\)\]$)", lines[at]):
            at += 1
        if at == len(lines):
            return None
        line = lines[at].strip()
        found = ITEM.match(line)
        name = found[2] if found else getattr(FIELD.match(line), "group", lambda _: None)(1)
        outer = enclosing(lines, at, functions=False)
        if name and outer and outer != "tests":
            return f"{outer}::{name}"
        return name or outer
    return enclosing(lines, at, functions=True)


def enclosing(lines, at, functions):
    """The innermost function (with its type), or the innermost type, around a line."""
    depth, name = indent(lines[at]), None
    for line in reversed(lines[:at]):
        if not line.strip() or indent(line) >= depth or line.strip().startswith("//"):
            continue
        depth = indent(line)
        text = line.strip()
        found, implemented = ITEM.match(text), IMPL.match(text)
        if implemented:
            return f"{implemented[1]}::{name}" if name else implemented[1]
        if found and found[1] == "fn":
            if functions and not name:
                name = found[2]
        elif found and found[1] in ("struct", "enum", "trait") and not name:
            return found[2]
    return name


def test_begins(lines):
    """First line of the test module at the foot of a file; beyond the end without one."""
    for number, line in enumerate(lines[:-1]):
        rest = lines[number + 1 : number + 4]
        if line == "#[cfg(test)]" and any(re.match(r"mod \w+ \{", text) for text in rest):
            return number
    return len(lines)


def is_test_file(path):
    name = path.name
    return "tests" in path.parts or name == "tests.rs" or name.endswith("_test.rs")


# --- Writing the table.


def render(files):
    places = defaultdict(lambda: ([], []))
    subjects = {}
    for path in files:
        lines = path.read_text().splitlines()
        shown = path.relative_to(ROOT)
        tests = 0 if is_test_file(shown) else test_begins(lines)
        for comment in comments(lines):
            for part in parts(comment.text):
                name = item(lines, comment)
                place = f"`{shown}`: `{name}`" if name else f"`{shown}`"
                tested = places[part][comment.first >= tests]
                if place not in tested:
                    tested.append(place)
                if not comment.first >= tests:
                    subjects.setdefault(part, subject(comment.text))
    statements = [part for part in places if part[0] in "Co"]
    sections = [part for part in places if part not in statements]
    gaps = [part for part in sorted(places, key=order) if not places[part][1]]
    text = HEADER + wrapped(f"No test cites: {', '.join(gaps)}." if gaps else "Tests cite all.")
    for title, cited in (("Compliance statements", statements), ("Sections", sections)):
        implemented = sum(1 for part in cited if places[part][0])
        tested = sum(1 for part in cited if places[part][1])
        text += f"\n## {title}\n\n{len(cited)} cited: {implemented} in code, {tested} in tests.\n\n"
        text += f"| {title[:-1].lower()} | subject | implemented | tested |\n|---|---|---|---|\n"
        for part in sorted(cited, key=order):
            code, tests = ("<br>".join(where) or "none" for where in places[part])
            about = SUBJECTS.get(part) or subjects.get(part, "")
            text += f"| {part} | {about} | {code} | {tests} |\n"
    return text


HEADER = """# Compliance with the specification

Sections and compliance statements of the InfiniBand Architecture Specification, volume 1, release
1.5, that the code and its tests cite. A row says where to look; it does not say that the section is
implemented completely, and code that cites nothing is not listed. Statements have the numbers that
OpenSM and the Linux kernel cite; other releases of the specification number some of them otherwise.

Written by `scripts/compliance.py`; `scripts/test.sh format` fails if it is not up to date.
"""


def wrapped(text):
    return "\n" + "\n".join(textwrap.wrap(text, 100, break_on_hyphens=False)) + "\n"


def subject(text):
    """Text of a comment before its first citation."""
    first = re.split(r"\s*\(|[.;:]", text, maxsplit=1)[0]
    return first.replace("|", "\\|").strip()


def order(part):
    """Statements by chapter and number; sections by their numbers, those of annexes last."""
    numbers = [int(number) if number.isdigit() else 0 for number in re.findall(r"\d+|x", part)]
    return (part.startswith(("A", "annex")), numbers, part)


# --- One style.


def normalise(path):
    lines = path.read_text().split("\n")
    changed = [normalised(line) for line in lines]
    for number, (old, new) in enumerate(zip(lines, changed), 1):
        if new != old and len(new) > 100:
            print(f"{path.relative_to(ROOT)}:{number}: longer than 100 columns; break it by hand")
    if changed != lines:
        path.write_text("\n".join(changed))
    for comment in comments(changed):
        for found in old_citations(comment.text):
            print(f"{path.relative_to(ROOT)}:{comment.first + 1}: not rewritten: {found[0]}")


def normalised(line):
    begin = line.find("//")
    if begin < 0:
        return line
    code, comment = line[:begin], line[begin:]
    comment = comment.replace("IBTA vol 1, ", "IBA ")
    for found in reversed(list(old_citations(comment))):
        # Only the first of a list has "IBA" before it.
        if OLD.search(comment, comment.rfind("(", 0, found.start())).start() == found.start():
            comment = f"{comment[:found.start()]}IBA {comment[found.start():]}"
    # One list: items behind the first are parted by commas.
    comment = re.sub(rf"(IBA {PART}(?:, {PART})*); (?={PART})", r"\1, ", comment)
    return code + comment


main(sys.argv[1:])

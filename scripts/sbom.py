#!/usr/bin/env python3
"""Writes the bill of materials of a package: CycloneDX 1.5 in JSON, from Cargo.lock.

usage: scripts/sbom.py PACKAGE CRATE ROOT PROGRAM... >FILE

PACKAGE is the name of the package, CRATE the crate of this workspace that its programs are built
from, ROOT the directory with the package's files, and each PROGRAM a path in it.

Lists the crates that `cargo tree` resolves for the build of scripts/package.sh on this platform,
with licences, checksums of Cargo.lock and who depends on whom; crates of procedural macros and
build scripts, which run in the build only, have the scope `excluded`. C code that a crate contains
is part of that crate. Rust's standard library is listed if the programs name their compiler.

Equal sources and programs give equal bytes: the time is SOURCE_DATE_EPOCH, the serial number is
made of the contents.
"""

import hashlib
import json
import os
import re
import subprocess
import sys
import time
import urllib.parse
import uuid

# What is built together, and so with common features (scripts/package.sh).
BUILT_TOGETHER = ["ibsm", "sa-server", "packaging"]
NAMESPACE = uuid.UUID("5d1f1a54-6ea4-5d3c-9c5e-8a3b6c0f7f10")
LINE = re.compile(
    r"(?P<depth>\d+)(?P<name>\S+) v(?P<version>\S+)(?P<notes>[^\t]*)"
    r"\t(?P<license>[^\t]*)\t(?P<repository>\S*)"
)


def cargo_tree(edges):
    """The crates by (name, version), and the crates that each depends on."""
    arguments = ["cargo", "tree", "--locked", "--edges", edges, "--prefix", "depth"]
    arguments += ["--format", "{p}\t{l}\t{r}"]
    for crate in BUILT_TOGETHER:
        arguments += ["--package", crate]
    crates, children = {}, {}
    above = []
    tree = subprocess.run(arguments, check=True, stdout=subprocess.PIPE, text=True).stdout
    for line in tree.splitlines():
        if not line:
            continue
        fields = LINE.match(line)
        if fields is None:
            sys.exit(f"cargo tree printed an unknown line: {line}")
        key = (fields["name"], fields["version"])
        crates[key] = {
            "license": fields["license"],
            "repository": fields["repository"],
            # A path, where the source is no registry.
            "is_ours": "(/" in fields["notes"],
        }
        children.setdefault(key, set())
        depth = int(fields["depth"])
        del above[depth:]
        if above:
            children[above[-1]].add(key)
        above.append(key)
    return crates, children


def reachable(children, root):
    found, waiting = set(), [root]
    while waiting:
        key = waiting.pop()
        if key not in found:
            found.add(key)
            waiting += children.get(key, ())
    return found


def checksums(path):
    """SHA-256 of the crates of registries, by (name, version)."""
    found = {}
    with open(path, encoding="utf-8") as lock:
        for block in lock.read().split("[[package]]")[1:]:
            fields = dict(re.findall(r'^(name|version|checksum) = "(.*)"$', block, re.MULTILINE))
            if "checksum" in fields:
                found[fields["name"], fields["version"]] = fields["checksum"]
    return found


def reference(key, crates):
    name, version = key
    if crates[key]["is_ours"]:
        return f"{name}@{version}"
    return f"pkg:cargo/{name}@{urllib.parse.quote(version, safe='')}"


def component(key, crates, hashes, linked):
    name, version = key
    crate = crates[key]
    result = {
        "type": "library", "bom-ref": reference(key, crates), "name": name, "version": version,
        "scope": "required" if key in linked else "excluded",
    }
    if key in hashes:
        result["hashes"] = [{"alg": "SHA-256", "content": hashes[key]}]
    if crate["license"]:
        # Before SPDX's expressions, `/` meant OR.
        expression = re.sub(r"\s*/\s*", " OR ", crate["license"])
        result["licenses"] = [{"expression": expression}]
    if not crate["is_ours"]:
        result["purl"] = reference(key, crates)
    if crate["repository"].startswith("http"):
        result["externalReferences"] = [{"type": "vcs", "url": crate["repository"]}]
    return result


def standard_library(programs):
    """The standard library of the compiler that the programs name, if there is one."""
    for content in programs.values():
        compiler = re.search(rb"rustc version (\d+\.\d+\.\d+[\w.-]*)", content)
        if compiler:
            version = compiler[1].decode()
            purl = f"pkg:generic/rust-std@{version}"
            return {
                "type": "library", "bom-ref": purl, "name": "rust-std", "version": version,
                "scope": "required", "licenses": [{"expression": "MIT OR Apache-2.0"}],
                "purl": purl,
            }
    return None


def file_component(path, content):
    return {
        "type": "file", "bom-ref": f"file:{path}", "name": path,
        "hashes": [{"alg": "SHA-256", "content": hashlib.sha256(content).hexdigest()}],
    }


def main():
    if len(sys.argv) < 5:
        sys.exit(__doc__)
    package, crate, directory = sys.argv[1:4]
    programs = {}
    for path in sys.argv[4:]:
        with open(os.path.join(directory, path), "rb") as program:
            programs["/" + path] = program.read()
    os.chdir(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
    crates, children = cargo_tree("normal,build")
    _, linked_children = cargo_tree("normal,no-proc-macro")
    root = next(key for key in crates if key[0] == crate and crates[key]["is_ours"])
    listed = reachable(children, root)
    linked = reachable(linked_children, root)
    hashes = checksums("Cargo.lock")
    missing = [key for key in listed if not crates[key]["is_ours"] and key not in hashes]
    if missing:
        sys.exit(f"without a checksum in Cargo.lock: {missing}")

    components = [component(key, crates, hashes, linked) for key in sorted(listed - {root})]
    library = standard_library(programs)
    if library:
        components.append(library)
    product = {
        "type": "application", "bom-ref": reference(root, crates), "name": package,
        "version": root[1], "licenses": [{"expression": crates[root]["license"]}],
        "components": [file_component(*program) for program in programs.items()],
    }
    dependencies = [
        {
            "ref": reference(key, crates),
            "dependsOn": sorted(reference(child, crates) for child in children[key]),
        }
        for key in sorted(listed)
    ]
    if library:
        next(each for each in dependencies if each["ref"] == product["bom-ref"])[
            "dependsOn"].append(library["bom-ref"])
        dependencies.append({"ref": library["bom-ref"]})
    when = time.gmtime(int(os.environ["SOURCE_DATE_EPOCH"]))
    bom = {
        "$schema": "http://cyclonedx.org/schema/bom-1.5.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "timestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ", when),
            "lifecycles": [{"phase": "build"}],
            "tools": {"components": [{"type": "application", "name": "scripts/sbom.py"}]},
            "component": product,
        },
        "components": components,
        "dependencies": dependencies,
    }
    contents = json.dumps(bom, sort_keys=True)
    bom["serialNumber"] = f"urn:uuid:{uuid.uuid5(NAMESPACE, contents)}"
    json.dump(bom, sys.stdout, indent=1, ensure_ascii=False)
    print()


if __name__ == "__main__":
    main()

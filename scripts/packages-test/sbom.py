#!/usr/bin/env python3
"""Checks the bills of materials of the packages: against the schema of CycloneDX where PyPI's
cyclonedx-python-lib[json-validation] is installed, for references without an object, against the
files of the package, and against the crates that the programs name in messages of panics.

usage: scripts/packages-test/sbom.py PACKAGE...
"""

import hashlib
import json
import re
import sys

# The kernel lab builds ibsa with the feature `verbs`, which packages do not have.
ONLY_IN_TESTS = {"rdma-mummy-sys"}


def check(package):
    root = f"target/package/{package}"
    with open(f"{root}/usr/share/doc/{package}/{package}.cdx.json", encoding="utf-8") as file:
        text = file.read()
    bom = json.loads(text)
    product = bom["metadata"]["component"]
    assert product["name"] == package

    references = [each["bom-ref"] for each in bom["components"] + [product]]
    assert len(set(references)) == len(references), "a reference has two objects"
    edges = {each["ref"]: each.get("dependsOn", []) for each in bom["dependencies"]}
    assert set(edges) == set(references), set(edges) ^ set(references)
    found, waiting = set(), [product["bom-ref"]]
    while waiting:
        reference = waiting.pop()
        if reference not in found:
            found.add(reference)
            waiting += edges[reference]
    assert found == set(references), f"nothing depends on {set(references) - found}"
    for each in bom["components"]:
        assert each.get("licenses"), f"{each['name']} has no licence"
        assert not each.get("purl", "").startswith("pkg:cargo/") or each["hashes"], each

    linked = {
        f"{each['name']}-{each['version']}"
        for each in bom["components"] if each["scope"] == "required"
    }
    assert any(name.startswith("rust-std-") for name in linked), "no standard library"
    named = set()
    for file in product["components"]:
        with open(root + file["name"], "rb") as program:
            content = program.read()
        assert file["hashes"][0]["content"] == hashlib.sha256(content).hexdigest(), file
        named |= {
            name.decode() for name in re.findall(rb"registry/src/[^/]+/([\w.+-]+)/", content)
            if name.decode().rsplit("-", 1)[0] not in ONLY_IN_TESTS
        }
    assert named, f"the programs of {package} name no crate"
    assert named <= linked, f"in the programs of {package}, but not listed: {named - linked}"
    return text


def schema_validator():
    try:
        from cyclonedx.exception import MissingOptionalDependencyException
        from cyclonedx.schema import SchemaVersion
        from cyclonedx.validation.json import JsonStrictValidator
    except ImportError:
        return None
    try:
        validator = JsonStrictValidator(SchemaVersion.V1_5)
        validator.validate_str("{}")
    except MissingOptionalDependencyException:
        return None
    return validator


def main():
    validator = schema_validator()
    if validator is None:
        print("skipped: no check against CycloneDX's schema, cyclonedx-python-lib is not installed")
    for package in sys.argv[1:]:
        text = check(package)
        if validator is not None:
            error = validator.validate_str(text)
            assert error is None, error


if __name__ == "__main__":
    main()

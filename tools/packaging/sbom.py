"""What the programs are made of, for scanners: a CycloneDX document (cyclonedx.org, version 1.5) with every crate that is linked into them, its version,
licence and checksum. The checksums are those of Cargo.lock.
"""

import datetime
import json
import tomllib
import uuid


def text(root, linked, name, version, when):
    """The document about package `name`, as of `when` (seconds since 1970). The same input gives the same text."""
    sums = {(crate["name"], crate["version"]): crate.get("checksum") for crate in tomllib.loads((root / "Cargo.lock").read_text())["package"]}
    known = {crate["id"]: reference(crate) for crate in linked}
    component = {
        "type": "application", "bom-ref": f"pkg:generic/{name}@{version}", "name": name, "version": version, "purl": f"pkg:generic/{name}@{version}",
        "licenses": [{"license": {"id": "Apache-2.0"}}],
    }  # fmt: skip
    needs = {known[crate["id"]]: sorted({known[need] for need in crate["needs"] if need in known}) for crate in linked}
    document = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"timestamp": datetime.datetime.fromtimestamp(when, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"), "component": component},
        "components": [described(crate, sums.get((crate["name"], crate["version"]))) for crate in linked],
        # Which crate Muster's own crates name themselves and which come with those, no user of the document asks.
        "dependencies": [{"ref": component["bom-ref"], "dependsOn": sorted(needs)}, *({"ref": key, "dependsOn": needs[key]} for key in sorted(needs))],
    }
    # A number that belongs to this content alone.
    document["serialNumber"] = f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, json.dumps(document))}"
    return json.dumps(document, indent=1) + "\n"


def reference(crate):
    return f"pkg:cargo/{crate['name']}@{crate['version']}"


def described(crate, checksum):
    found = {"type": "library", "bom-ref": reference(crate), "name": crate["name"], "version": crate["version"], "purl": reference(crate), "scope": "required"}
    if crate["license"]:
        # Old crates write a slash for OR.
        found["licenses"] = [{"expression": crate["license"].replace("/", " OR ")}]
    if checksum:
        found["hashes"] = [{"alg": "SHA-256", "content": checksum}]
    if crate["repository"]:
        found["externalReferences"] = [{"type": "vcs", "url": crate["repository"]}]
    return found


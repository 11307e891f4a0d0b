"""Installs what is shipped, by the words of the guide: each overlay as it is, and each component added to one. Nothing is added to make it fit.

It asks whether every right is where the coordinator needs it, and takes each installation away again. Whether their pods can run is not asked:
that needs the GPUs, volumes and images of each. The rest of the story runs one of them.
"""

import re
import shutil

from cluster import COORDINATOR_ACCOUNT, NAMESPACE, ROOT, NotSo, check

MANIFESTS = ROOT / "manifests"
# Components are added to this one.
PLAIN = "no-gpu"
# Their objects are of kinds that not every cluster has.
FOREIGN = {"cert-manager": "certificates.cert-manager.io"}


class Installs:
    def __init__(self, story):
        self.story, self.kubectl = story, story.kubectl

    def run(self):
        lacking, done = [], []
        for overlay, component in self.choices():
            kind = FOREIGN.get(component)
            if kind and not self.kubectl("get", "crd", kind, "--ignore-not-found", "-o", "name").strip():
                lacking.append(component)
                continue
            folder = self.written(overlay, component)
            asked = self.tried(folder)
            done.append(f"{component or overlay} ({asked})")
        said = f"{', '.join(done)}: the rights in {NAMESPACE} are the coordinator's"
        return f"{said}; without {' and '.join(lacking)}, whose kinds this cluster lacks" if lacking else said

    def choices(self):
        overlays = sorted(path.name for path in (MANIFESTS / "overlays").iterdir())
        components = sorted(path.name for path in (MANIFESTS / "components").iterdir())
        return [*((overlay, None) for overlay in overlays), *((PLAIN, component) for component in components)]

    def written(self, overlay, component):
        """A copy of the manifests, with the line that the component's file gives for an overlay."""
        copy = self.story.folder / "manifests"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(MANIFESTS, copy)
        folder = copy / "overlays" / overlay
        if component:
            said = (MANIFESTS / "components" / component / "kustomization.yaml").read_text()
            line = re.search(r"^#   (components: \[.*\])$", said, re.MULTILINE)
            check(line, f"components/{component} says how it is added")
            with (folder / "kustomization.yaml").open("a") as file:
                file.write(f"{line[1]}\n")
        return folder

    def tried(self, folder):
        """Applies it as the guide does. Returns how many rights were asked for."""
        try:
            self.kubectl("apply", "--server-side", "-k", str(folder), timeout=120)
            return self.rights(folder)
        finally:
            self.kubectl("delete", "-k", str(folder), "--ignore-not-found", "--timeout=120s", timeout=130)

    def rights(self, folder):
        """Those of all its Roles. They are of use in the namespace of Muster only, wherever the overlay puts them."""
        objects = self.kubectl.objects("-k", str(folder))
        roles = {role["metadata"]["name"]: role["rules"] for role in objects if role["kind"] == "Role"}
        asked = 0
        for binding in objects:
            accounts = [subject["name"] for subject in binding.get("subjects", []) if subject["kind"] == "ServiceAccount"]
            if binding["kind"] != "RoleBinding" or accounts != ["muster-coordinator"]:
                continue
            for rule in roles[binding["roleRef"]["name"]]:
                for verb, what in asks(rule):
                    command = ("auth", "can-i", verb, *what, "-n", NAMESPACE, f"--as={COORDINATOR_ACCOUNT}")
                    asked += 1
                    if (self.kubectl(*command, may_fail=True) or "no").strip() != "yes":
                        raise NotSo(f"with {folder.name}, {binding['metadata']['name']}: the coordinator may {verb} {' '.join(what)} in {NAMESPACE}")
        return asked


def asks(rule):
    """Each right of a rule, as kubectl auth can-i takes it."""
    for group in rule["apiGroups"]:
        for resource in rule["resources"]:
            plural, _, part = resource.partition("/")
            kind = f"{plural}.{group}" if group else plural
            for name in rule.get("resourceNames", [""]):
                what = [f"{kind}/{name}" if name else kind, *([f"--subresource={part}"] if part else [])]
                yield from ((verb, what) for verb in rule["verbs"])
